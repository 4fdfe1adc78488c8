//! How big a story is: as big as a test suite allows, or, under `make endure`, as big as the promise.

/// `usual`, or `full` when `ENDURE=1` is in the environment.
pub fn size<T>(usual: T, full: T) -> T {
    match std::env::var("ENDURE").as_deref() {
        Err(_) | Ok("0") => usual,
        Ok("1") => full,
        Ok(other) => panic!("ENDURE must be 0 or 1, and is {other:?}"),
    }
}
