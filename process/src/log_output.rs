//! Output of the log: never waits for long for a reader that does not read.
//!
//! A write to a pipe or socket that is full would stop the thread that logs, and with it all
//! requests of its shard. A line for which no room is made in time is lost.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{retry_on_intr, write};

/// Bytes of a write. A pipe that is ready takes as many without waiting.
/// Source: `PIPE_BUF` in pipe(7).
const PART_BYTES: usize = 4096;
/// Time for the reader to make room, unless it has just let it pass.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A pipe, socket, terminal or file. A line for which there is no room is lost, or cut off where the
/// room ends.
#[derive(Debug)]
pub(crate) struct LogOutput<F> {
    output: F,
    /// There was room for the last part.
    has_room: bool,
    /// The last line was cut off. The next one begins on a line of its own.
    is_torn: bool,
}

impl<F: AsFd> LogOutput<F> {
    pub(crate) fn new(output: F) -> Self {
        Self { output, has_room: true, is_torn: false }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.chunks(PART_BYTES) {
            let mut left = part;
            while !left.is_empty() {
                self.wait_for_room()?;
                let written = retry_on_intr(|| write(&self.output, left))?;
                if written == 0 {
                    return Err(ErrorKind::WriteZero.into());
                }
                self.is_torn = true;
                left = &left[written..];
            }
        }
        Ok(())
    }

    fn wait_for_room(&mut self) -> io::Result<()> {
        let wait = if self.has_room { WAIT } else { NO_WAIT };
        let mut outputs = [PollFd::new(&self.output, PollFlags::OUT)];
        self.has_room = retry_on_intr(|| poll(&mut outputs, Some(&wait)))? > 0;
        if self.has_room { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
    }
}

impl<F: AsFd> Write for LogOutput<F> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.is_torn {
            self.put(b"\n")?;
            self.is_torn = false;
        }
        self.put(line)?;
        self.is_torn = false;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Writes until nobody has made room for a line. A write that waits would end no test.
    fn lines_are_lost_until_there_is_room(mut reader: impl Read, writer: impl AsFd) {
        let mut output = LogOutput::new(writer);
        let line = [&[b'x'; 5000][..], b"\n"].concat();
        let taken = (0..10_000).take_while(|_| output.write(&line).is_ok()).count();
        assert!(taken > 2, "it took {taken} lines");
        for _ in 0..100 {
            assert_eq!(
                output.write(&line).map_err(|error| error.kind()),
                Err(ErrorKind::WouldBlock)
            );
        }
        reader.read_exact(&mut vec![0; taken * line.len()]).expect("what was taken");
        assert_eq!(output.write(b"whole\n").expect("there is room"), 6);
        drop(output);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("the rest");
        // A part of a line may be there before it.
        assert_eq!(rest.lines().next_back(), Some("whole"), "{rest}");
        assert!(rest.len() <= line.len() + 7, "{rest}");
    }

    #[test]
    fn a_pipe_that_nobody_reads_stops_nothing() {
        let (reader, writer) = io::pipe().expect("a pipe");
        lines_are_lost_until_there_is_room(reader, writer);
    }

    #[test]
    fn a_socket_that_nobody_reads_stops_nothing() {
        let (reader, writer) = UnixStream::pair().expect("two sockets");
        lines_are_lost_until_there_is_room(reader, writer);
    }

    #[test]
    fn a_pipe_without_a_reader_is_an_error() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let error = LogOutput::new(writer).write(b"line\n").expect_err("nobody can read it");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}
