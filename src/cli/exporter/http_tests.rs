//! The server beside clients that mean harm, are slow, or ask for something else.

use super::*;

fn server() -> MetricsServer {
    let page = |accept: &str| {
        Ok(ServedPage {
            content_type: PLAIN,
            body: format!("accept: {accept}\n{}", "x".repeat(1 << 20)),
        })
    };
    MetricsServer::start("127.0.0.1:0".parse().unwrap(), Arc::new(page)).unwrap()
}

fn connect(server: &MetricsServer) -> TcpStream {
    TcpStream::connect(server.address()).unwrap()
}

/// All that is answered to `request`; a connection that is closed or reset ends it.
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
    let answer =
        ask(&server, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nACCEPT: text/plain\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(body.starts_with("accept: text/plain\n"));
    assert!(ask(&server, b"HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("close\r\n\r\n"));
    for (request, status) in [
        (&b"GET /etc/passwd HTTP/1.1\r\n\r\n"[..], "404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n", "405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
        (b"GET / HTTP/1.1\r\n\r\n", "200"),
    ] {
        let answer = ask(&server, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
}

#[test]
fn a_request_has_a_longest_length_and_a_greatest_number_of_headers() {
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
fn connections_that_say_nothing_leave_room_after_their_time_and_do_not_hold_up_the_end() {
    let server = server();
    let idle: Vec<TcpStream> = (0..3 * MAX_CONNECTIONS).map(|_| connect(&server)).collect();
    // Those beyond the limit are closed at once; the others when their time is over.
    let end = Instant::now() + TIMEOUT * 12;
    let answered = std::iter::repeat_with(|| ask(&server, b"GET / HTTP/1.1\r\n\r\n"))
        .take_while(|_| Instant::now() < end)
        .inspect(|_| std::thread::sleep(POLL_INTERVAL))
        .find(|answer| answer.starts_with("HTTP/1.1 200"));
    assert!(answered.is_some(), "idle connections hold the server up");
    let slow = connect(&server);
    drop(server);
    drop((idle, slow));
}
