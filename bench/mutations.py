#!/usr/bin/env python3
"""Puts mistakes into a state machine, one at a time, and says which test finds each.

  bench/mutations.py core [WORD ...]     the delivery core; only those whose names hold one of the words
  bench/mutations.py store [WORD ...]    the receiver's store mode

Works on a copy of what is committed, in a target folder of its own: two minutes for each that only the
simulator finds, seconds for the others. Exit code 1 if one is not found, or does not fit the code any more.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Name, file, what stands there, and the mistake.
CORE = [
    ('suspects jump the line', 'suspects.rs',
     'self.is_called(key) || (self.waiting.is_empty() && free > self.called.len())', 'free > 0'),
    ('probes have no slice', 'suspects.rs',
     'over.truncate(self.attempts.suspects.waiting.len());', 'over.clear();'),
    ('every slice is short', 'suspects.rs', 'SLICE * luby(probes + 1)', 'SLICE * (1 + probes / 1_000)'),
    ('a called lane keeps its turn for ever', 'suspects.rs',
     '*until > now && flow', '*until > Duration::ZERO && flow'),
    ('what is cut off is never given up', 'ended.rs',
     'if self.session.is_draining || !has_timed_out {', 'if !self.session.is_draining || !has_timed_out {'),
    ('given up without its whole time', 'ended.rs',
     'if self.session.is_draining || !has_timed_out {', 'if self.session.is_draining {'),
    ('no attempt has all its time', 'suspects.rs',
     'Some(attempt.resource) != scout && is_over(attempt)', 'is_over(attempt)'),
    ('last attempts are cut off', 'slow.rs',
     '&& Some(attempt.resource) != last', '&& (last.is_none() || last.is_some())'),
    ('a called lane takes the place of the turn that waits', 'dispatch.rs',
     'if self.next.is_some() {\n                    self.release(turn.resource);', 'if self.next.is_some() && false {\n                    self.release(turn.resource);'),
    ('a blocked lane is not looked at again', 'turns.rs',
     'self.queue.lanes.wake_at(key, at);\n        }\n    }\n\n    /// Lanes whose wait', 'let _ = (key, at);\n        }\n    }\n\n    /// Lanes whose wait'),
    ('probes of a backend that is down have no slice', 'slow.rs',
     '} else if self.backend.is_down() {', '} else if self.backend.is_down() && self.attempts.len() > 1_000 {'),
    ('no probe of a backend that is down has all its time', 'slow.rs',
     '.skip(usize::from(has_scout))', '.skip(usize::from(has_scout && slots > 1_000))'),
    ('a single probe never has all its time', 'slow.rs',
     'slots > 1 || self.backend.probes.is_whole_due()', 'slots > 1'),
    ('a single probe always has all its time', 'slow.rs',
     'slots > 1 || self.backend.probes.is_whole_due()', 'slots >= 1'),
    ('a backend that is down has as many probes as slots', 'dispatch.rs',
     'self.backend.is_stopped() && self.attempts.len() >= self.probe_slots(turn.lane)', 'self.attempts.len() > 1_000_000'),
    ('new lanes have every probe', 'turns.rs', 'if looks.unfailed == 0 { Preferred', 'if looks.unfailed > 9 { Preferred'),
    ('who asks for less of a shop is probed without a pause', 'ended.rs',
     '} else if is_narrow {\n            self.backend.probed(now);', '} else if is_narrow {'),
    ('a backend that refuses slowly has a probe for each slice', 'dispatch.rs',
     'if self.backend.is_refusing() {\n            return self.attempts.usual() > 0;', 'if self.backend.is_refusing() && self.attempts.len() > 1_000 {\n            return self.attempts.usual() > 0;'),
    ('slices fall in step with the lanes', 'slow.rs', 'mixed(id.0) >>', 'id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >>'),
    ('quick failures end the turn of slices', 'ended.rs',
     'if attempt.is_slow {\n                self.backend.probes', 'if !attempt.is_slow || attempt.is_slow {\n                self.backend.probes'),
    ('the oldest lane of a stopped backend always goes first', 'turns.rs',
     'if is_stopped { lane.flow.began_at } else { Duration::ZERO }', 'if is_stopped { Duration::ZERO } else { Duration::ZERO }'),
    ('a lone probe of a backend that is down is cut off', 'slow.rs',
     'let Some(waiting) = self.next else { return Vec::new() };\n        let now = self.session.now.at;\n        let (in_flight, slots) = (self.attempts.len(), self.probe_slots(waiting.lane));',
     'let now = self.session.now.at;\n        let (in_flight, slots) = (self.attempts.len(), self.next.map_or(1, |turn| self.probe_slots(turn.lane)));'),
    ('probes of a stopped backend go out together', 'dispatch.rs',
     'self.attempts.has_quick(self.session.now.at.saturating_sub(SLICE))', 'self.attempts.usual() > 0'),
    ('slices do not follow what is usual', 'slow.rs',
     'SLICE.max(self.queue.shops.usual() * 2)', 'SLICE * 20'),
    ('slices stay long', 'suspects.rs', 'self.least.max(took * 2).min(LEAST_MAX)', 'self.least.max(took * 2)'),
    ('recording costs a lane its place', 'suspects.rs',
     'if flow.is_some_and(|flow| flow.recording > 0) {', 'if flow.is_some_and(|flow| flow.recording > 1_000) {'),
    ('a stopped backend is probed by the line', 'suspects.rs',
     'if self.attempts.len() >= slots || self.backend.is_stopped() {', 'if self.attempts.len() >= slots {'),
    ('a lane whose shop waits for its rate loses its place', 'suspects.rs',
     'Some(at).filter(|at| *at <= now + OPENS_WITHIN)', 'Some(at).filter(|at| *at <= now)'),
    ('the line has all the time of a single slot', 'suspects.rs',
     'self.rests_until = now + took.min(LEAST_MAX) * REST_TIMES;',
     'self.rests_until = now; let _ = took * REST_TIMES;'),
    ('slow deliveries take the last slot of the line', 'attempts.rs',
     'of_part.max(own)', 'of_part.max(own.min(0))'),
    ('slices never learn', 'suspects.rs', 'self.least.max(took * 2).min(LEAST_MAX)', 'self.least'),
    ('called lanes wait for the round of the shops', 'turns.rs',
     'if !is_next && let Some(called) = self.next_called() {',
     'if false && !is_next && let Some(called) = self.next_called() {'),
    ('called lanes go before every turn that waits', 'turns.rs',
     'if !is_next && let Some(called)', 'if let Some(called)'),
    ('probes are cut off while nothing may begin', 'suspects.rs',
     'self.limiter.concurrency(now) > 0 && self.may_begin().is_ok();', 'true;'),
    ('a cut does not count for the breaker', 'ended.rs',
     'lane.breaker.failed(false, attempt.began, now, chance);', ''),
    ('shops that are passed over go to the end', 'turns.rs',
     'if found.is_some() {\n                set_aside', 'if found.is_none() {\n                set_aside'),
    ('cuts come at once', 'attempts.rs', 'is_due.then(|| least + since / CUT_SINCE_PART)', 'Some(least)'),
    ('no turns for shops that are served', 'proven.rs',
     'self.turns = (self.turns + 1) % TURNS;', 'self.turns = 0;'),
    ('bytes of starved shops are kept', 'reading.rs',
     '!self.is_blocked(lane) && self.shop_gate(lane.shop).is_ok()', '!self.is_blocked(lane)'),
    ('a front pack that is gone is not noticed', 'reading.rs',
     'let is_missing = packs.is_empty();', 'let is_missing = false;'),
    ('a slow shop holds every slot', 'dispatch.rs',
     'shop.is_long()\n                &&', 'false &&'),
    ('a slow shop leaves no slot', 'dispatch.rs',
     'slots + self.left_slots()', 'slots'),
    ('no slots beside held ones', 'dispatch.rs',
     'if is_usual {', 'if false && is_usual {'),
    ('others wait behind the turn of a slow shop', 'dispatch.rs',
     'if is_holding && aside < ASIDE_MAX {', 'if is_holding && aside > ASIDE_MAX {'),
    ('attempts are cut off for a pause', 'slow.rs',
     'concurrency > 0 && self.may_begin().is_ok()', 'true'),
    ('attempts are cut off for the rate', 'slow.rs',
     '&& self.attempts.len() >= slots', '&& slots < usize::MAX'),
    ('lanes that hang wait for a slot', 'dispatch.rs',
     'self.attempts.len() < self.limiter.concurrency(now) + self.spare_slots()\n            && ',
     ''),
    ('breakers that open together are probed together', 'breaker.rs',
     '*probe_at = now + jittered(*wait, chance);',
     '*probe_at = now + jittered(*wait, 1.0);'),
    ('a pack at hand is looked at again after half a second', 'moving.rs',
     'self.mover.due = now + AGAIN_AFTER;',
     'self.mover.due = now + LOOK_EVERY;'),
    ('packs move a few at a time', 'config.rs',
     'moved_packs: 64,',
     'moved_packs: 8,'),
    ('what a lead waits for is not read without room', 'refill.rs',
     'if waits && (is_paused || !has_time || !self.must_know_more(key, &unread)) {',
     'if waits {'),
    ('stuck windows not cut', 'cut.rs',
     'if !self.has_room() {\n            self.cut_stuck();',
     'if !self.has_room() && most == 0 {\n            self.cut_stuck();'),
    ('a full index is never read into between seven eighths and full', 'cut.rs',
     'now < self.session.shrunk.1 + SHRINKS_WITHIN',
     'now < self.session.shrunk.1 + 10_000 * SHRINKS_WITHIN'),
    ('waits of what was cut are kept', 'retry.rs',
     'if self.due.len() <= 2 * self.states.len() {',
     'if self.due.len() <= 2_000 * self.states.len() {'),
    ('a pack read for each lane', 'refill.rs',
     'Some(entry) if self.reading.rests.contains(&entry) => {',
     'Some(entry) if self.reading.rests.contains(&entry) && false => {'),
    ('reads of packs for rests do not end', 'refill.rs',
     'self.reading.rests.remove(&entry);',
     'let _ = &self.reading.rests;'),
    ('reads of chunks do not end', 'refill.rs',
     'self.reading.chunks.end(has_few, count);',
     'let _ = (has_few, count);'),
    ('many small chunks of long lanes at once', 'chunk_reads.rs',
     '(self.many, MANY_MAX)',
     '(self.many, FEW_MAX)'),
    ('chunks of long lanes wait for those of short ones', 'chunk_reads.rs',
     '(self.many, MANY_MAX)',
     '(self.few + self.many, MANY_MAX)'),
    ('long lanes are listed behind short ones', 'lanes.rs',
     'self.hungry[usize::from(has_few)].push_back(key);',
     'self.hungry[1].push_back(key);'),
    ('large chunks count as small', 'reading.rs',
     'chunk.bytes <= SMALL_BYTES',
     'chunk.bytes > 0'),
    ('all chunks count as large', 'reading.rs',
     'chunk.bytes <= SMALL_BYTES',
     'chunk.bytes == 0'),
    ('chunks that are written count as large', 'moving.rs',
     'left: count, bytes });',
     'left: count, bytes: u32::MAX });'),
    ('what is gone is read again and again', 'reading.rs',
     'let gone = self.is_pack_needed(key).then(|| self.gone()).flatten();',
     'let gone = None;'),
    ('what is gone and not needed is lost', 'reading.rs',
     'let gone = self.is_pack_needed(key).then(|| self.gone()).flatten();',
     'let gone = self.gone();'),
    ('the size of chunks is never forgotten', 'chunk_reads.rs',
     'bytes.max(self.bytes - self.bytes / DECAY)',
     'bytes.max(self.bytes - self.bytes / DECAY / 1_000_000)'),
    ('settled packs read again', 'refill.rs',
     'pack.left > 0 && pack.lanes',
     'pack.left < u32::MAX && pack.lanes'),
    ('packs read for every lane', 'main_stream.rs',
     'self.0[word] & bit != 0',
     'self.0[word] & bit != 0 || true'),
    ('intake before refill', 'refill.rs',
     'self.session.is_refill_due |= ',
     'self.session.is_refill_due |= false && '),
    ('drain writes no retries', 'core.rs',
     'self.ledger.retries.extend(tried.map(|position| (position, key)));',
     'let _ = (tried.count(), key);'),
    ('drain writes no rows', 'core.rs',
     'self.ledger.changed.push(key);\n            }\n        }\n    }',
     '}\n        }\n    }'),
    ('retries take the backend down', 'backend.rs',
     'if is_first && self.failing.len() < LANES_DOWN {',
     'if self.failing.len() < LANES_DOWN {'),
    ('reads without room', 'refill.rs',
     'is_straddling || !self.has_room()',
     'is_straddling'),
    ('unread ones not looked at again', 'core.rs',
     'if self.queue.unread.len() > UNREAD_FEW {',
     'if self.queue.unread.len() > usize::MAX - 1 {'),
    ('a lane not noted', 'arrive.rs',
     'self.queue.main.holds(sorted.lane);',
     'if index > 0 { self.queue.main.holds(sorted.lane); }'),
    ('no sharing of reads', 'refill.rs',
     'let mut lanes = self.others_next(entry, &sorted);',
     'let mut lanes = BTreeMap::new();'),
    ('shared reads do not grow windows', 'refill.rs',
     'for key in lanes.into_values() {',
     'for key in lanes.into_values().filter(|one| *one == key).collect::<Vec<_>>() {'),
    ('ends before retries are written', 'ledger.rs',
     'let is_written = self.changed.is_empty() && self.retries.is_empty();',
     'let is_written = true;'),
    ('ready forgets replays', 'index.rs',
     'lead == Some(position)',
     'lead == Some(position) && !self.is_replay(resource)'),
    ('suspects not written', 'settle.rs',
     'let is_suspect = lane.flow.suspect.is_some();',
     'let is_suspect = false;'),
    ('overtaken ones count', 'attempts.rs',
     'attempt.is_some_and(|attempt| !self.is_overtaken(attempt))',
     'attempt.is_some()'),
    ('failing from the start', 'breaker.rs',
     'failing_since: None, carried: Duration::ZERO }',
     'failing_since: Some(Duration::ZERO), carried: Duration::ZERO }'),
    ('pause spent on retries', 'controls.rs',
     'retry.since += now.saturating_sub(since.max(retry.since));',
     'let _ = (&retry, since);'),
    ('pause spent by breaker', 'controls.rs',
     'lane.breaker.forgive(since, now);',
     'let _ = (since, &lane.breaker);'),
    ('filter pause not forgiven', 'controls.rs',
     'is_filtered.then_some(self.controls.since.max(lane.flow.tried_at))',
     '(is_filtered && false).then_some(self.controls.since.max(lane.flow.tried_at))'),
    ('retry clock runs in a pause', 'controls.rs',
     'self.paused_since(key).unwrap_or_else(|| self.active())',
     '{ let _ = key; self.active() }'),
    ('recording does not hold the breaker', 'lane.rs',
     'self.in_flight + self.recording > 0',
     'self.in_flight > 0'),
    ('leads hold all that is newer', 'cut.rs',
     '.is_some_and(|lead| position <= *lead)',
     '.is_some_and(|lead| { let _ = (position, lead); true })'),
    ('give-ups do not quicken', 'breaker.rs',
     '*wait = (*wait / 4).max(WAIT_LEAST);',
     '*wait = (*wait).max(WAIT_LEAST);'),
    ('known packs move late', 'moving.rs',
     'if was_read { park_after / AGAIN_PART } else { park_after }',
     'if was_read { park_after } else { park_after }'),
    ('own chunk written off', 'refill.rs',
     'stored.misses_own |= !is_corrupt && number >= stored.loaded_to;',
     ''),
    ('gone shop keeps turns', 'shop.rs',
     'shop.filter(|shop| shop.born == born)',
     'shop.filter(|_| born > 0)'),
    ('paused shop not woken', 'shop.rs',
     'self.due.push(Reverse((until, key)));\n                    }\n                    continue;',
     '}\n                    continue;'),
    ('drops of what is at work forgotten', 'controls.rs',
     'self.controls.at_work.insert(resource);\n            return;',
     'return;'),
    ('replay linked before what is at work', 'index/links.rs',
     'resource.state.is_at_work() || speaks_for_others',
     'speaks_for_others'),
    ('replays not reordered', 'ended.rs',
     'if self.queue.index.reorder(attempt.resource) {',
     'if false && self.queue.index.reorder(attempt.resource) {'),
    ('left lanes not held back', 'dispatch.rs',
     'lane.flow.is_left && now < LEFT_AFTER',
     'lane.flow.is_left && now > now + LEFT_AFTER'),
    ('left lanes not last', 'turns.rs',
     'now < LEFT_LAST &&',
     'now > now + LEFT_LAST &&'),
    ('first failures count at once', 'backend.rs',
     'self.first_failures >= FIRST_FAILURES_DOWN && silence >= FIRST_FAILURES_AFTER',
     'self.first_failures >= FIRST_FAILURES_DOWN && silence + FIRST_FAILURES_AFTER > silence'),
    ('lead deleted with its writing', 'settle.rs',
     'changes.deleted.retain(|gone| !changes.written.iter().any(|(hash, _)| hash == gone));',
     ''),
    ('not sent counts as an attempt', 'ended.rs',
     'self.retry(&attempt, attempt.number - 1, Duration::ZERO)',
     'self.retry(&attempt, attempt.number, Duration::ZERO)'),
    ('retry state shed unwritten', 'cut.rs',
     'if !self.ledger.retries.contains_key(&about.position) {',
     '{'),
    ('names cleared too early', 'controls.rs',
     'let keeps_names = std::mem::take(&mut controls.keeps_names);',
     'let keeps_names = std::mem::take(&mut controls.keeps_names) && false;'),
    ('two slots at once of a suspect lane', 'dispatch.rs',
     'if lane.flow.is_at_work() || now < suspect.until {',
     'if now < suspect.until {'),
]
STORE = [
    ('restores unfenced', 'mode.rs',
     'self.is_fenced && self.appends == 0', 'self.appends == 0'),
    ('restores beside appends', 'mode.rs',
     'self.is_fenced && self.appends == 0', 'self.is_fenced'),
    ('a hanging append does not spill', 'mode.rs',
     'self.hanging > 0 || self.writes > 0 => Spilling', 'self.writes > 0 => Spilling'),
    ('a refused append leaves it direct', 'mode.rs',
     'self.hanging > 0 || self.writes > 0 => Spilling', 'self.hanging > 0 => Spilling'),
    ('direct unfenced', 'mode.rs',
     'Direct if !self.is_fenced => Spilling,', ''),
    ('not fenced again after standing back', 'mode.rs',
     '(self.is_read, self.is_fenced) = (false, false)', 'self.is_read = false'),
    ('unknown appends are not fenced', 'mode.rs',
     'self.is_fenced &= is_known;', 'let _ = is_known;'),
    ('a claim that was away is not fenced', 'mode.rs',
     'self.is_fenced &= !is_new;', 'let _ = is_new;'),
    ('goes on restoring an unusable queue', 'mode.rs',
     'Closing if !self.is_usable || !self.is_fenced', 'Closing if !self.is_fenced'),
    ('goes on restoring unfenced', 'mode.rs',
     'Closing if !self.is_usable || !self.is_fenced', 'Closing if !self.is_usable'),
    ('finishes beside writes', 'mode.rs',
     'StoreMode::Restoring | StoreMode::Closing) && self.writes == 0',
     'StoreMode::Restoring | StoreMode::Closing)'),
    ('a hold does not run out', 'mode.rs',
     'Closing if !self.is_read || self.hold != Hold::Held => Restoring',
     'Closing if !self.is_read => Restoring'),
    ('holds again at once', 'mode.rs',
     'self.is_read && self.hold == Hold::Allowed => Closing', 'self.is_read => Closing'),
    ('nothing is held', 'mode.rs',
     'StoreMode::Closing => return None,',
     'StoreMode::Closing => { self.writes += 1; Admitted::Write }'),
    ('chunks end a hold', 'mode.rs',
     'if self.mode == StoreMode::Restoring {\n                    self.is_read = is_last;\n                }',
     'self.is_read = is_last;'),
    ('closing although a chunk failed', 'mode.rs',
     'StoreEvent::ChunkFailed => self.is_read = false,', 'StoreEvent::ChunkFailed => {}'),
    ('hanging is not counted down', 'mode.rs',
     'self.hanging -= u32::from(was_hanging);', ''),
    ('written while standing back', 'mode.rs',
     'let may_write = self.mode != StoreMode::StandingBack;', 'let may_write = true;'),
    ('the next hold begins where the last one ends', 'gate.rs',
     '} else if !is_holding && since >= HOLD_AGAIN {', '} else if since >= HOLD_AGAIN {'),
    ('a dropped append counts as ended', 'gate.rs',
     'impl Drop for WritePass {',
     'impl Drop for AppendPass {\n    fn drop(&mut self) {\n        self.gate.on(StoreEvent::AppendEnded { was_hanging: self.is_hanging, is_known: true });\n    }\n}\nimpl Drop for WritePass {'),
    ('holds end without a notification', 'gate.rs',
     'self.opened.notify_waiters();', ''),
]
# Package, folder of the files, and arguments of cargo test, from the quickest on.
MACHINES = {
    "core": (CORE, "spillway-delivery", "delivery/src",
             [["--lib", "--test", "flow", "--test", "chunks"], ["--test", "hour"], ["--test", "simulation"]]),
    "store": (STORE, "request-receiver", "request-receiver/src/spill", [["--lib", "spill::"]]),
}
# Of one run of tests, in seconds: some mistakes make a loop without end.
ENDS_WITHIN = 900


def finder(tree, target, package, tests):
    """Tests that fail, None if all pass."""
    for arguments in tests:
        run = subprocess.Popen(["cargo", "test", "--locked", "-p", package, "--no-fail-fast", *arguments],
                               cwd=tree, env={**os.environ, "CARGO_TARGET_DIR": target}, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
        try:
            output, errors = run.communicate(timeout=ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
            return "the tests do not end"
        if "could not compile" in errors:
            return "does not compile: " + errors[-400:]
        if run.returncode:
            failed = [line.split()[1] for line in output.splitlines()
                      if line.startswith("test ") and line.endswith("FAILED")]
            return ", ".join(failed) or "a test binary ended"
    return None


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in MACHINES:
        sys.exit(f"usage: bench/mutations.py {'|'.join(MACHINES)} [WORD ...]")
    mutations, package, folder, tests = MACHINES[sys.argv[1]]
    words = sys.argv[2:]
    repository = Path(__file__).resolve().parent.parent
    failures = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as directory:
        tree = Path(directory) / "tree"
        subprocess.run(["git", "clone", "--quiet", repository, tree], check=True)
        for name, file, stands, mistake in mutations:
            if words and not any(word in name for word in words):
                continue
            path, began = tree / folder / file, time.monotonic()
            text = path.read_text()
            if text.count(stands) != 1:
                found = None
                print(f"{name}: does not fit: {file} holds it {text.count(stands)} times", flush=True)
            else:
                path.write_text(text.replace(stands, mistake))
                found = finder(tree, str(Path(directory) / "target"), package, tests)
                path.write_text(text)
                print(f"{name}: {found or 'NOT FOUND'} ({time.monotonic() - began:.0f} s)", flush=True)
            failures += found is None or found.startswith("does not compile")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
