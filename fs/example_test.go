package fs_test

import (
	"log"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs"
	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// A program serves a view of /srv/project at /mnt/project. The view hides .env
// files, and the log holds each attempt to use one. The program ends when somebody
// unmounts the view: umount /mnt/project. It needs root and /dev/fuse.
func ExampleNew() {
	policy, err := scope.Compile(scope.PolicySpec{Paths: []scope.PathRule{{Pattern: "**/.env", Access: scope.Hide}}})
	if err != nil {
		log.Fatal(err)
	}
	records, err := audit.Open("/var/log/project", audit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer records.Close()
	root, err := beneath.OpenRoot("/srv/project", ".")
	if err != nil {
		log.Fatal(err)
	}
	defer root.Close()
	dev, err := fusedev.Mount("/mnt/project", fusedev.MountOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	view, err := fs.New(root, dev.FD(), fs.Options{Policy: policy, Recorder: records, Agent: "project"})
	if err != nil {
		log.Fatal(err)
	}
	if err := view.Serve(); err != nil {
		log.Fatal(err)
	}
}
