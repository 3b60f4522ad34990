//! Requests over `wasi:http`.

use std::mem;

use wasip2::{
    http::{
        outgoing_handler,
        types::{
            ErrorCode, Fields, FutureIncomingResponse, IncomingBody, IncomingResponse, Method,
            OutgoingBody, OutgoingRequest, RequestOptions, Scheme,
        },
    },
    io::streams::StreamError,
};

use crate::Http;

/// Bytes of a request's body that are written at once.
const PART: usize = 4096;

/// Sends the step's request, and then one to where each redirect points if it
/// says so. Answers the status and the body of the last response.
pub(crate) fn send(step: &Http) -> Result<String, String> {
    let mut url = step.url.clone();
    loop {
        let response = wait(&begin(step, &url)?)?;
        let status = response.status();
        let location = response.headers().get("location").into_iter().next();
        match location {
            Some(location) if step.follow && (300..400).contains(&status) => {
                url = String::from_utf8_lossy(&location).into_owned();
            }
            _ => return Ok(format!("{status} {}", read(&response)?)),
        }
    }
}

/// Sends the step's request so many times at once, reads no response, and
/// leaves all of them open.
pub(crate) fn hold(step: &Http, count: u32) -> Result<String, String> {
    for _ in 0..count {
        mem::forget(begin(step, &step.url)?);
    }
    Ok(format!("{count} are open"))
}

/// Sends the step's request so many times at once, then reads each response.
pub(crate) fn all(step: &Http, count: u32) -> Result<String, String> {
    let begun = (0..count).map(|_| begin(step, &step.url)).collect::<Result<Vec<_>, _>>()?;
    let answers = begun.iter().map(|begun| read(&wait(begun)?));
    answers.collect::<Result<Vec<_>, _>>().map(|bodies| format!("{} were read", bodies.len()))
}

fn begin(step: &Http, url: &str) -> Result<FutureIncomingResponse, String> {
    let (scheme, rest) = url.split_once("://").ok_or("no URL")?;
    let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let fields = Fields::new();
    for (name, value) in &step.headers {
        let value = crate::text_of(value).into_bytes();
        fields.append(name, &value).map_err(|error| format!("header {name}: {error:?}"))?;
    }
    let request = OutgoingRequest::new(fields);
    let method = match step.method.as_str() {
        "GET" => Method::Get,
        "POST" => Method::Post,
        "CONNECT" => Method::Connect,
        other => Method::Other(other.into()),
    };
    let refused = |what: &'static str| move |()| format!("no {what}");
    request.set_method(&method).map_err(refused("method"))?;
    request
        .set_scheme(Some(&match scheme {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            other => Scheme::Other(other.into()),
        }))
        .map_err(refused("scheme"))?;
    request.set_authority(Some(authority)).map_err(refused("authority"))?;
    request.set_path_with_query(Some(path)).map_err(refused("path"))?;
    let options = RequestOptions::new();
    let nanos = step.connect_ms.map(|ms| ms * 1_000_000);
    options.set_connect_timeout(nanos).map_err(refused("connect timeout"))?;
    let body = step.body.clone().map(String::into_bytes);
    let body = body.or_else(|| step.body_bytes.map(|bytes| vec![b'x'; bytes]));
    let outgoing = body.as_ref().map(|_| request.body()).transpose().map_err(refused("body"))?;
    let begun = outgoing_handler::handle(request, Some(options)).map_err(|error| code(&error))?;
    if let (Some(outgoing), Some(body)) = (outgoing, body) {
        // Why the host takes no more of it is told instead of the response.
        let _ = write(outgoing, &body);
    }
    Ok(begun)
}

fn write(outgoing: OutgoingBody, body: &[u8]) -> Result<(), String> {
    let stream = outgoing.write().map_err(|()| "no stream".to_owned())?;
    for part in body.chunks(PART) {
        stream.blocking_write_and_flush(part).map_err(|error| format!("{error:?}"))?;
    }
    drop(stream);
    OutgoingBody::finish(outgoing, None).map_err(|error| code(&error))
}

fn wait(begun: &FutureIncomingResponse) -> Result<IncomingResponse, String> {
    begun.subscribe().block();
    let answer = begun.get().ok_or("no answer")?;
    answer.map_err(|()| "taken".to_owned())?.map_err(|error| code(&error))
}

fn read(response: &IncomingResponse) -> Result<String, String> {
    let body = response.consume().map_err(|()| "no body".to_owned())?;
    let stream = body.stream().map_err(|()| "no stream".to_owned())?;
    let mut whole = Vec::new();
    loop {
        match stream.blocking_read(1 << 16) {
            Ok(part) => whole.extend_from_slice(&part),
            Err(StreamError::Closed) => break,
            Err(StreamError::LastOperationFailed(error)) => {
                let known = wasip2::http::types::http_error_code(&error);
                return Err(known.map_or_else(|| error.to_debug_string(), |known| code(&known)));
            }
        }
    }
    drop(stream);
    IncomingBody::finish(body);
    Ok(String::from_utf8_lossy(&whole).into_owned())
}

fn code(code: &ErrorCode) -> String {
    format!("http {code:?}")
}
