// Package history keeps what the clients of a view destroy, and takes changes back.
//
// A [Store] belongs to one scope. Before the view changes an object it calls a [Writer], which appends a
// record to a journal and keeps what the change would destroy: the content of a file that is about to be
// written, a file whose last name is removed or replaced, attributes. The journal is ahead of the tree:
// after a crash the next [Open] compares the last records with the tree and corrects the journal.
//
// # Generations
//
// A generation is the changes of one tool call, or of one session outside of calls, up to the next
// checkpoint. The first change of an object in a generation keeps the object; later ones cost nothing.
// What a generation has created costs nothing to keep. Generations run side by side: [Options.Actor]
// returns the label of the one that a process belongs to.
//
// # Layout
//
// The history's directory is on the mount of the scope's directory, because a removed file is renamed into
// it. Each generation has a directory, named by the time of its first record in hexadecimal nanoseconds:
//
//	lock                   flock(2) of the process that writes
//	checkpoints            their times and names
//	links                  removed names of files that still have other names
//	reserve                room for what removals take on a full file system
//	nearly-full            is there once Options.Dropped knows that the oldest generations go next
//	18a3c0ffee000000.open  a generation that is being written
//	18a3bfffee000000-2a    a generation that has ended, and keeps 0x2a KiB
//	  journal              its records, of package journal
//	  1, 2, …              kept files, by journal.Record.Kept
//	  plan                 of an undo that is not done: see package plan
//	  s1, s2, …            what its steps bring to the tree
//
// # Limits
//
// A file that was open for writing with passthrough before the generation began is kept as it was when it
// was opened: the changes of both generations count as one for that file. A file above [MaxCopy] on a file
// system without reflinks is not kept; every listing says so. Access times are not kept.
// After a power failure a kept copy can be incomplete. Open finds it by its size, and lists it as not kept.
package history
