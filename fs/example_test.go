package fs_test

import (
	"log"
	"os/exec"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs"
	"github.com/scopefs/scopefs/fs/fusemount"
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
	dev, err := fusemount.Mount("/mnt/project", fusemount.MountOptions{})
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

// The process that serves the view at /mnt/project starts a program that works in it. With Cmd.Dir both would wait for each
// other: see Deadlocks. The shell changes the directory after its exec, while the view is served.
func ExampleView_Serve() {
	test := exec.Command("/bin/sh", "-c", `cd "$1" && shift && exec "$@"`, "sh", "/mnt/project", "go", "test", "./...")
	if out, err := test.CombinedOutput(); err != nil {
		log.Fatalf("%v: %s", err, out)
	}
}
