//! The tree's object of the kernel program is what its source compiles to.
//!
//! `UPDATE_PROBE=1 cargo test --test fast kernel_program` compiles it anew; needs clang and
//! libbpf-dev.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use aya_obj::Object;
use aya_obj::btf::BtfKind;

const SOURCE: &str = "cuda/probe.bpf.c";
const OBJECT: &str = "cuda/probe.bpf.o";
/// Who compiled it.
const COMPILER: &str = "cuda/probe.bpf.txt";

fn clang() -> Command {
    Command::new(std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned()))
}

/// The versions of what the object depends on, beside its source.
fn compiler() -> String {
    let version = clang().arg("--version").output().expect("clang, which setup.sh installs");
    let version = String::from_utf8(version.stdout).unwrap();
    let header = fs::read_to_string("/usr/include/bpf/libbpf_version.h").expect("libbpf-dev");
    let number = |name: &str| {
        let line = header.lines().find(|line| line.contains(name)).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    format!(
        "{}\nlibbpf {}.{}\n",
        version.lines().next().unwrap(),
        number("LIBBPF_MAJOR_VERSION"),
        number("LIBBPF_MINOR_VERSION")
    )
}

fn compile(object: &Path) {
    // A fixed folder in its line tables, so that each checkout yields the same bytes.
    let flags = ["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-fdebug-compilation-dir=."];
    let mut command = clang();
    command.args(flags).args(["-Wall", "-Werror", "-Icuda", "-c", SOURCE, "-o"]).arg(object);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Names of the structures that the source declares.
fn structures() -> Vec<String> {
    let sources = fs::read_dir("cuda").unwrap().map(|entry| entry.unwrap().path());
    let sources = sources.filter(|path| path.extension().is_some_and(|it| it == "c" || it == "h"));
    let text: String = sources.map(|path| fs::read_to_string(path).unwrap()).collect();
    let declarations = text.lines().filter_map(|line| line.strip_prefix("struct "));
    declarations.filter_map(|rest| rest.strip_suffix(" {")).map(str::to_owned).collect()
}

/// Its programs, maps and types.
fn contents(bytes: &[u8]) -> BTreeSet<String> {
    let object = Object::parse(bytes).unwrap();
    let programs = object.programs.keys().map(|name| format!("program {name}"));
    let maps = object.maps.iter().map(|(name, map)| {
        let sizes = [map.key_size(), map.value_size(), map.max_entries()];
        format!("map {name}: type {}, {sizes:?}", map.map_type())
    });
    let types = object.btf.as_ref().unwrap();
    let has_type = |name: &&str| types.id_by_type_name_kind(name, BtfKind::Struct).is_ok();
    let declared = structures();
    let types = declared.iter().map(String::as_str).filter(has_type);
    let types = types.map(|name| format!("type {name}"));
    programs.chain(maps).chain(types).collect()
}

#[test]
fn the_kernel_object_is_compiled_from_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let fresh = folder.path().join("probe.bpf.o");
    compile(&fresh);
    if std::env::var_os("UPDATE_PROBE").is_some() {
        fs::copy(&fresh, OBJECT).unwrap();
        fs::write(COMPILER, compiler()).unwrap();
    }
    let (fresh, kept) = (fs::read(fresh).unwrap(), fs::read(OBJECT).unwrap());
    let advice = "compile it anew: UPDATE_PROBE=1 cargo test --test fast kernel_program";
    if compiler() == fs::read_to_string(COMPILER).unwrap() {
        assert!(fresh == kept, "{OBJECT} is not {SOURCE} of today; {advice}");
    }
    assert_eq!(contents(&fresh), contents(&kept), "{OBJECT} is not {SOURCE} of today; {advice}");
}
