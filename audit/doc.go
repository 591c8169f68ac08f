// Package audit is the log: one JSON line for every decision, in the order in which they were made.
//
// A log is a directory of segments, 00000001.jsonl and on, and the files lock and mark. Sequence numbers start at 1, grow
// by one across segments, restarts and the processes of one host that have the same log open, and are never given twice:
// each group of lines is written with one write(2) under flock(2), after whatever the others appended has been taken into
// account. A segment that is full, or a day old, is made read-only before the next one is created. It is then compressed to
// 00000001.jsonl.zst, with an index that lets [Read] leave out what a [Filter] does not choose, and removed by
// [Options.KeepAge] and [Options.KeepBytes].
//
// [Open] writes the log in the caller's process. [Start] has another process write it, so that a disk that does not
// answer stops neither the caller's appends nor its end.
//
// # What is guaranteed
//
// [Log.Append] returns a sequence number once the line is in the kernel's page cache. From there:
//
//   - After a crash or a SIGKILL of any of our processes, every event whose Append returned is in the log. One that was
//     being written may be there whole or not at all.
//   - After a power loss or a crash of the kernel, everything older than [Options.Sync] is in the log as far as the disk
//     keeps what fsync(2) promised. What is younger may be missing. The next start records that in an event with outcome
//     [OutcomeUnclean], which names the last event known to have been on disk, and skips the numbers that were lost.
//   - When a write fails (full disk, I/O error), the log is cut back to its last whole line and everyone in that group
//     gets the error. From then on every event is refused until an event with outcome [OutcomeRecovered] could be
//     written, which counts the refused. The log tries that by itself, every [Options.Retry].
//   - When the disk is full, the log gives up the room of the file reserve, and refuses only what has not happened yet:
//     [OutcomeBegin], allowed file operations, commands. Denials and ends are recorded while that lasts. Before, when
//     little room is left, it records [OutcomeLow].
//   - When fsync(2) fails, events that were acknowledged may not outlive a power loss; the log counts as failing and
//     says so in the same way.
//   - When somebody removes, renames, replaces or truncates the last segment or the directory, the log notices before the
//     next event, and within [Options.Sync] when there is none. It goes on in a new segment and records
//     [OutcomeLost].
//   - Whatever follows the last whole line when the log is opened, or when another process has died, is moved to a file
//     beside the segment, such as 00000001.jsonl.damaged, and recorded as [OutcomeTorn]. Damage elsewhere is left in
//     place: [Read] reports it and goes on.
//   - A call with outcome [OutcomeBegin] and no other event gets one with outcome [OutcomeUnknown] from the first process
//     that has the log open alone.
//
// # What a line may hold
//
// Never the contents of a file. Every string is passed through [Escape] (a line is valid UTF-8 and harmless on a
// terminal) and is bounded: 4096 bytes for path and target, 256 for the others; what is longer loses its middle to a
// marker such as \cut{1234}, the number of bytes left out. Secrets in target and detail are replaced by [redacted]; a
// path is kept as it is, because it is the proof.
package audit
