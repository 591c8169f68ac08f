package doctor

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/mount"
)

// Sharing reports whether other hosts may change the files below a directory.
func Sharing(ctx context.Context, check, dir string) Line {
	t := try{check, Views, func(context.Context) []Line { return []Line{sharing(dir)} }}
	return t.within(ctx)[0]
}

func sharing(dir string) Line {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Line{Status: Missing, Detail: fmt.Sprintf("%s: %v", dir, err)}
	}
	defer unix.Close(fd)
	var table mount.Table
	at, err := table.FileSystem(fd)
	switch {
	case err != nil:
		return Line{Status: Degraded, Detail: err.Error(), Remedy: "views cache nothing"}
	case at.Shared:
		return Line{Status: Degraded, Detail: fmt.Sprintf("%s is on %s: other hosts may change it, so views cache nothing", dir, at.Type),
			Remedy: "for faster views use a local file system; keep --state and --run on one"}
	}
	return Line{Detail: fmt.Sprintf("%s is on %s, which only this host changes", dir, at.Type)}
}
