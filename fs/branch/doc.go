// Package branch compares what a view holds with the directory, and takes it over.
//
// The layers of package hold are the branch: Base is the directory, and Upper has what clients have changed. [Branch.Diff] lists what
// differs. [Branch.Commit] takes it over, or a part of it, and [Branch.Discard] drops it.
//
// # What differs
//
// Only what Upper has, or a record names, can differ. A moved directory is one entry, and its content is compared with what it was in
// Base. What equals Base is not listed.
//
// # Conflicts
//
// [Stamp] notes the time, by the file system's clock. An object of Base whose change time is later was changed there, and
// conflicts with a change of the branch. Nobody can set a change time. What a commit leaves in Base is listed in the file
// taken, and does not conflict until it changes again. Nor does a version that the branch showed when it was changed there
// first: [Bases].
//
// # Merge
//
// [Bases] keeps that version of a text. With [Merge] a commit merges it by lines with that of Base and that of the branch. A client that
// writes to the file meanwhile has a conflict again, with the same version before. A record is of a path of the branch: it does not
// count any more when a directory above is moved, or when a commit or a discard makes the path equal to Base.
//
// # Commit
//
//  1. New objects are copied to the stage, with attributes, and synced.
//  2. The steps are written to the file intent, a journal of package plan, and synced. From here on the commit is finished, by
//     [Branch.Resume] after a crash.
//  3. What leaves its place in Base is renamed into the stage, the deepest first. Then new directories are made, and moved and
//     new objects renamed to their places. A changed file is exchanged with the staged one.
//  4. Directories are synced, taken has what is in Base now, and intent and stage are removed.
//  5. What equals Base leaves Upper, unless a client has it open for writing or mapped: from then on clients see Base.
//
// # Layout
//
// State is on the same mount as Base, because objects are renamed between the two:
//
//	stamp   its change time is the fork; flock(2) of the process that has the branch open
//	used    flock(2) of the process that has the view, or of one that takes changes over without a view
//	upper/  what clients have made and copied
//	layer   the journal of removals and moves, of package hold
//	taken   versions of Base that are no conflict
//	bases   what paths were before the branch changed them: texts of files, of the same secrecy as the files
//	intent  a commit that is not finished
//	stage/  new objects, and those that a commit has taken out of Base
//	dropped a directory of Upper that a discard removes
//
// What it cannot do is in docs/limits.md.
package branch
