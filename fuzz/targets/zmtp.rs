//! What a peer says over one of our ZMTP connections: two bytes that choose our socket and how the rest is cut, then
//! the peer's bytes. Cuts change nothing, what isn't whole is held within its bounds, and no more is answered than
//! was said.
#![no_main]

use homing_wire::zmtp::{
    COMMAND_MAX, FRAME_COST, FRAMES_MAX, Heard, MESSAGE_MAX, Role, Session, ZmtpError,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [role, cut, bytes @ ..] = data else { return };
    let role = match role & 1 {
        0 => Role::Subscriber,
        _ => Role::Asker(vec![vec![], vec![0; 8]]),
    };
    let whole = hear(role.clone(), bytes, bytes.len().max(1));
    assert_eq!(hear(role, bytes, usize::from(*cut).max(1)), whole);
    for heard in &whole.0 {
        let Heard::Message(frames) = heard else { continue };
        let size = frames.iter().map(|frame| frame.len() + FRAME_COST).sum::<usize>();
        assert!(frames.len() <= FRAMES_MAX && size <= MESSAGE_MAX);
    }
});

type Outcome = (Vec<Heard>, Option<ZmtpError>, Vec<u8>);

fn hear(role: Role, bytes: &[u8], cut: usize) -> Outcome {
    let mut session = Session::new(role);
    let (mut heard, mut out) = (vec![], session.output());
    let mut came = 0;
    for mut piece in bytes.chunks(cut) {
        came += piece.len();
        loop {
            let result = session.read(&mut piece);
            out.extend(session.output());
            // The greeting, READY and what the socket is for.
            assert!(out.len() <= came + 256);
            assert!(session.held() <= (2 * came + 8192).min(MESSAGE_MAX + COMMAND_MAX));
            match result {
                Ok(Some(one)) => heard.push(one),
                Ok(None) => break,
                Err(error) => return (heard, Some(error), out),
            }
        }
    }
    assert!(session.is_ready() == heard.contains(&Heard::Ready));
    (heard, None, out)
}
