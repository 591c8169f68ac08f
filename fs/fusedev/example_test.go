package fusedev_test

import (
	"log"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/fs/fusemount"
)

// A program mounts a file system in which every operation fails with ENOSYS, and
// serves it until somebody unmounts it. It needs root and /dev/fuse.
func ExampleMount() {
	dev, err := fusemount.Mount("/mnt/empty", fusemount.MountOptions{Source: "empty"})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	server := fuse.NewProtocolServer(fuse.NewDefaultRawFileSystem(), &fuse.MountOptions{MaxWrite: fusedev.MaxWrite})
	conn := fusedev.NewConn(dev.FD(), server, fusedev.Options{})
	if _, err := conn.Init(); err != nil {
		log.Fatal(err)
	}
	conn.Serve()
}
