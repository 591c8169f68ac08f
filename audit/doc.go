// Package audit is the log: one JSON line for every decision, in the order of the decisions.
//
// A log is a directory of segments, 00000001.jsonl and on, and the files lock and mark. Sequence numbers start at 1 and
// increase by 1 across segments, restarts, and the processes of one host that have the same log open. No number is
// assigned twice: a process appends each group of lines with one write(2) under flock(2), after it has read what other
// processes appended. A segment that is full, or a day old, becomes read-only before the next one is created. The log then
// compresses it to 00000001.jsonl.zst, with an index that lets [Read] skip parts without a match for a [Filter].
// [Options.KeepAge] and [Options.KeepBytes] limit how long segments are kept.
//
// An event that its caller kept before it was appended ([Log.AppendAll]) has the time of the decision in Decided.
//
// [Open] writes the log in the caller's process. With [Start] another process writes it, so that a disk that does not
// respond blocks neither Append nor Close. A [Channel] takes the events of one agent alone. Package audit/proof verifies a log,
// and proves its lines to others.
//
// # Guarantees
//
// [Log.Append] returns a sequence number once the line is in the kernel's page cache. From then on:
//
//   - After a crash or a SIGKILL of any process that writes the log, every event whose Append returned is in the log. An
//     event that was being written is in the log whole or not at all.
//   - After a power loss or a crash of the kernel, every event older than [Options.Sync] is in the log, as far as the disk
//     keeps what fsync(2) promised. Later events may be missing. The next start records that in an event with outcome
//     [OutcomeUnclean], which names the last event known to have been on disk, and skips the lost numbers.
//   - When a write fails (full disk, I/O error), the log truncates the segment to its last whole line, and every Append of
//     that group returns the error. The log then refuses every event until it has written an event with outcome
//     [OutcomeRecovered], which counts the refused events. It retries every [Options.Retry].
//   - When the disk is full, the log frees the space of the file reserve. It then refuses only events that precede their
//     effect: [OutcomeBegin], allowed file operations, commands. It still records denials and ends, as long as that space
//     lasts. When the disk becomes nearly full, it records [OutcomeLow].
//   - When fsync(2) fails, acknowledged events may not survive a power loss. The log counts that as a failure and records
//     [OutcomeRecovered] afterwards.
//   - When another program removes, renames, replaces or truncates the last segment or the directory, the log detects it
//     before the next event, and within [Options.Sync] without one. It continues in a new segment and records
//     [OutcomeLost].
//   - When the log is opened, or another process has died, the log moves any bytes after the last whole line to a file
//     beside the segment, such as 00000001.jsonl.damaged, and records [OutcomeTorn]. It leaves damage elsewhere in place:
//     [Read] reports it and continues.
//   - For a call with outcome [OutcomeBegin] and no other event, the first process that has the log open alone records an
//     event with outcome [OutcomeUnknown].
//
// # Contents of a line
//
// A line never contains the contents of a file. Every string is passed through [Escape], so that a line is valid UTF-8 and
// harmless on a terminal. A string is limited to 4096 bytes for path and target and 256 bytes for the others. In a longer
// string a marker such as \cut{1234} replaces the middle; the number is the bytes removed. The log replaces secrets in
// target and detail by [redacted]. It does not change paths, because they are evidence.
package audit
