package harness

import (
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/fs/fusemount"
)

// Kernel is what FUSE of this kernel can do for a view of root. Tests that run on older kernels ask it what to expect.
type Kernel struct {
	Passthrough bool // the kernel reads and writes files itself: Linux 6.9, with CONFIG_FUSE_PASSTHROUGH
	MapsDirect  bool // files that are open with FOPEN_DIRECT_IO have shared mappings: Linux 6.6
}

// ThisKernel returns what the kernel offers to a server in FUSE_INIT.
func ThisKernel(t testing.TB) Kernel {
	t.Helper()
	dev, err := fusemount.Open(fusemount.MountOptions{})
	require.NoError(t, err)
	defer dev.Close()
	const wanted = fuse.CAP_PASSTHROUGH | fuse.CAP_DIRECT_IO_ALLOW_MMAP
	server := fuse.NewProtocolServer(fuse.NewDefaultRawFileSystem(),
		&fuse.MountOptions{MaxWrite: fusedev.MaxWrite, MaxStackDepth: 1, ExtraCapabilities: wanted})
	settings, err := fusedev.NewConn(dev.FD(), server, fusedev.Options{}).Init()
	require.NoError(t, err)
	return Kernel{
		Passthrough: settings.Flags64()&fuse.CAP_PASSTHROUGH != 0,
		MapsDirect:  settings.Flags64()&fuse.CAP_DIRECT_IO_ALLOW_MMAP != 0,
	}
}
