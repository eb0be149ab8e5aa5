//! What several targets share: messages of several frames in one input, as the captures are on disk
//! (`testdata/kv-events/*.frames.bin`): a count of frames, then the length (32 bits, big-endian) and the bytes of
//! each.

/// The messages of an input, up to the first that is not whole.
pub fn messages(mut input: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    std::iter::from_fn(move || {
        let count = *input.split_off_first()?;
        (0..count).map(|_| frame(&mut input)).collect()
    })
}

fn frame<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_be_bytes(input.split_off(..4)?.try_into().ok()?);
    input.split_off(..usize::try_from(length).ok()?)
}
