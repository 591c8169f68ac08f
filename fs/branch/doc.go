// Package branch compares a fork of a directory with the directory, and takes it over.
//
// The fork is an overlay (overlayfs) whose lower layer is the directory, called Base: what clients of the fork change is in
// its upper layer, and Base stays as it is. Mount it with redirect_dir=on, metacopy=off and index=off, all layers on one file
// system. [Branch.Diff] lists what differs. [Branch.Commit] takes it over, or a part of it.
//
// # What differs
//
// Only what Upper has can differ. A whiteout of Upper is a removal. An object of the overlay that came from Base has its
// inode number in Base, also after it was copied up or renamed: an object that has left its path in Base and is at another
// path of the overlay was moved. A moved directory is one entry, and its content is compared with what it was in Base.
//
// # Conflicts
//
// [Fork] notes the time, by the file system's clock. An object of Base whose change time is later was changed there, and
// conflicts with a change of the branch. Nobody can set a change time. What a commit leaves in Base is listed in the file
// taken, and does not conflict until it changes again. Nor does a version that the branch showed when it was changed there
// first: [Bases].
//
// # Merge
//
// [Bases] keeps that version of a text. With [Merge] a commit merges it by lines with that of Base and that of the branch, and
// puts the result into both. A client that writes to the file meanwhile has a conflict again, with the same version before.
// A record is of a path of the branch: it does not count any more when a directory above is moved, or when a commit or a
// discard makes the path equal to Base, which have their own records.
//
// # Commit
//
//  1. New objects are copied to the stage, with attributes, and synced.
//  2. The steps are written to the file intent, a journal of package plan, and synced. From here on the commit is finished, by
//     [Branch.Resume] after a crash.
//  3. What leaves its place in Base is renamed into the stage, the deepest first. Then new directories are made, and moved and
//     new objects renamed to their places. A changed file is exchanged with the staged one.
//  4. Directories are synced, taken has what is in Base now, and intent and stage are removed.
//
// The branch can be in use meanwhile and afterwards. Upper is not changed, but for merged files: what equals Base is not listed
// any more.
// After a commit that has moved directories, [Result].Moved, the overlay has to be mounted again, with [Redirect].
//
// A view that holds paths by rules writes Upper itself, with whiteouts and without extended attributes: [Roots].Held. Then
// [Note] says what a version came of, a commit removes from Upper what it has taken, and [Branch.Drop] is the Discard.
//
// # Layout
//
// State is on the same mount as Base, because objects are renamed between the two:
//
//	stamp   its change time is the fork; flock(2) of the process that has the branch open
//	used    flock(2) of the process that has the overlay mounted
//	taken   what commits have left in Base
//	bases   what paths were before the branch changed them: texts of files, of the same secrecy as the files
//	intent  a commit that is not finished
//	stage/  new objects, and those that a commit has taken out of Base
//	dropped a directory of Upper that a discard removes
//	unsettled there is something for Settle to do
//
// # Limits
//
// Times alone are not compared, nor the attributes of the root. Sockets and devices cannot be taken. A commit breaks
// hard links of Base to a changed file, as the overlay does. Host processes that have a replaced file open keep the old
// one. Without [Roots].Origin a file that the branch has changed, and the host removed, is listed as added. A clock
// that is set back hides changes of Base from the comparison of times. A rename of a directory by the host does not
// change the change times of what is in it: an old file that comes to a path in this way counts as unchanged. Discard
// leaves directories that do not show later files of Base. File systems must not be mounted below Base. Modes that
// keep the owner from an object are lifted while it is read or changed, those of at most maxLifted directories: a crash while
// the branch is compared leaves them lifted; one during a step does not.
package branch
