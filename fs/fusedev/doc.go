// Package fusedev serves a FUSE file system over /dev/fuse: it mounts, reads
// requests, sends notifications and registers backing files.
package fusedev
