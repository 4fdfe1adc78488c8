//! Size of a test: small enough for a test suite or, under `make endure`, as large as the promise.

/// Returns `usual`, or `full` if `ENDURE=1` is in the environment.
pub fn size<T>(usual: T, full: T) -> T {
    match std::env::var("ENDURE").as_deref() {
        Err(_) | Ok("0") => usual,
        Ok("1") => full,
        Ok(other) => panic!("ENDURE must be 0 or 1, and is {other:?}"),
    }
}
