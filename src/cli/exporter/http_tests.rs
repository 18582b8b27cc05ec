//! Hostile and slow clients, wrong requests.

use super::*;

fn server() -> MetricsServer {
    let page = |accept: &str| {
        Ok(ServedPage {
            content_type: PLAIN,
            body: format!("accept: {accept}\n{}", "x".repeat(1 << 20)),
        })
    };
    let hosts = vec!["gpu17".to_owned()];
    MetricsServer::start("127.0.0.1:0".parse().unwrap(), hosts, Arc::new(page)).unwrap()
}

fn connect(server: &MetricsServer) -> TcpStream {
    TcpStream::connect(server.address()).unwrap()
}

fn ask(server: &MetricsServer, request: &[u8]) -> String {
    let mut stream = connect(server);
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn a_page_is_served_whole_and_other_requests_are_refused() {
    let server = server();
    let answer = ask(
        &server,
        b"GET /metrics?x=1 HTTP/1.1\r\nHost: 127.0.0.1:9400\r\nACCEPT: text/plain\r\n\r\n",
    );
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(body.starts_with("accept: text/plain\n"));
    let head = ask(&server, b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("close\r\n\r\n"), "{head}");
    for (request, status) in [
        (&b"GET /etc/passwd HTTP/1.1\r\n\r\n"[..], "404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n", "405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
        (b"GET / HTTP/1.1\r\nHost: [::ffff:127.0.0.1]:80\r\n\r\n", "200"),
    ] {
        let answer = ask(&server, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
}

#[test]
fn request_length_and_headers_are_limited() {
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".to_vec(), vec![b'a'; MAX_REQUEST]].concat();
    let many =
        [b"GET /metrics HTTP/1.1\r\n".to_vec(), b"A: b\r\n".repeat(MAX_HEADERS + 1)].concat();
    for request in [&long, &[many, b"\r\n".to_vec()].concat()] {
        assert_eq!(
            RequestTarget::parse(request),
            Some(RequestTarget::Refused("431 Request Header Fields Too Large"))
        );
    }
    assert_eq!(RequestTarget::parse(b"GET /metr"), None);
}

#[test]
fn a_rebound_host_name_is_refused() {
    let server = server();
    let ask = |host: &str| ask(&server, format!("GET /metrics HTTP/1.1\r\n{host}\r\n").as_bytes());
    for host in ["127.0.0.1", "127.0.0.1:9400", "localhost:1", "LOCALHOST", "gpu17:9400", "GPU17"] {
        let answer = ask(&format!("Host: {host}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer:.80}");
    }
    for host in [
        "Host: evil.example\r\n",
        "Host: 127.0.0.1.evil.example\r\n",
        "Host: 127.0.0.2\r\n",
        "Host: gpu17.evil\r\n",
        "Host:\r\n",
        "",
    ] {
        let answer = ask(host);
        assert!(answer.starts_with("HTTP/1.1 403"), "{host}: {answer:.80}");
        assert!(!answer.contains("evil") && answer.contains("--allow-host"), "{answer}");
    }
    assert!(is_own("[::1]:9400", "::1".parse().unwrap(), &[]));
    assert!(!is_own("localhost", "192.0.2.1".parse().unwrap(), &[]));
}

#[test]
fn silent_clients_do_not_block_others() {
    let server = server();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut slow: Vec<TcpStream> = (0..20).map(|_| connect(&server)).collect();
    slow.iter_mut().step_by(2).for_each(|stream| drop(stream.write_all(request)));
    for _ in 0..20 {
        assert!(ask(&server, request).starts_with("HTTP/1.1 200"));
        slow.push(connect(&server));
    }
    drop(server);
}
