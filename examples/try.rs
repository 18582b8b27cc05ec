use memspy::model::*;
use memspy::sampler::*;
use std::collections::*;
use std::sync::atomic::AtomicBool;
fn main() {
    let pid: u32 = std::env::args().nth(1).unwrap().parse().unwrap();
    let secs: f64 = std::env::args().nth(2).unwrap().parse().unwrap();
    let readers = Readers::attach_any(pid).map_err(|e| e.to_string()).unwrap();
    println!(
        "python {:?} torch {:?}",
        readers.python.as_ref().map(|p| p.version().to_owned()),
        readers.torch_version()
    );
    let mut rec = ExactRecorder::new(
        readers,
        ExactWanted {
            duration: Some(std::time::Duration::from_secs_f64(secs)),
            ..Default::default()
        },
    );
    let t = std::time::Instant::now();
    if let Err(e) = rec.place() {
        println!("place: {e}");
        return;
    }
    println!(
        "placed in {:?} {:?} {:?}",
        t.elapsed(),
        rec.probe().map(|p| p.probes().to_vec()),
        rec.probe().map(|p| p.uncovered().to_vec())
    );
    let mut sink: Vec<Record> = vec![];
    let t = std::time::Instant::now();
    let end = rec.run("h".into(), &mut sink, &AtomicBool::new(false), &mut |_| ()).unwrap();
    println!("end after {:?} {:?}", t.elapsed(), end);
    let mut table = StackTable::new();
    let mut by: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for r in &sink {
        match r {
            Record::Definition(d) => assert!(table.define(d.clone()), "{d:?}"),
            Record::Events(e) => {
                for e in &e.events {
                    let k = format!("{:?}", e.change);
                    let k: String = k
                        .split(['{', '('])
                        .take(2)
                        .collect::<Vec<_>>()
                        .join(" ")
                        .chars()
                        .take(40)
                        .collect();
                    *kinds.entry(k).or_default() += 1;
                    if let Change::Allocated { size, .. } = e.change {
                        let s = e.site.unwrap().0;
                        let x = by.entry(s).or_default();
                        x.0 += size;
                        x.1 += 1;
                    }
                }
            }
            Record::Reconciled(r) => println!("{r:?}"),
            Record::Missed(m) => println!("{m:?}"),
            Record::Exact(e) => println!("{e:?}"),
            Record::Blocks(b) => {
                println!("map {:?} {} blocks {:?}", b.time, b.blocks().count(), b.consistency)
            }
            _ => {}
        }
    }
    println!("{kinds:?}");
    let mut v: Vec<_> = by.into_iter().collect();
    v.sort_by_key(|x| std::cmp::Reverse(x.1.0));
    for (s, (b, n)) in v.iter().take(12) {
        let site = table.get_site(SiteId(*s)).unwrap();
        println!(
            "-- {b} B {n} x {:?} {:?} trunc {} node {:?} fwd {:?}",
            site.source,
            table.get_thread(site.thread).unwrap().name,
            site.truncated,
            site.node,
            site.forward.map(|f| table
                .frames(f)
                .map(|f| format!("{}:{}", table.get_function(f.function).unwrap().name, f.line))
                .collect::<Vec<_>>()
                .join(" < "))
        );
        if let Some(st) = site.stack {
            println!(
                "   {}",
                table
                    .frames(st)
                    .map(|f| format!("{}:{}", table.get_function(f.function).unwrap().name, f.line))
                    .collect::<Vec<_>>()
                    .join(" < ")
            );
        }
    }
    println!("{} sites", v.len());
}
