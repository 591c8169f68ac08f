package kernels

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// shares are the tests of a shared file system, with the kernel's NFS server and two of its clients in one guest.
var shares = []suite{
	{name: "nfs", pkg: "integration/view", run: "^Test(Elsewhere|NFS)", env: "SCOPEFS_TEST_VOLUME=nfs REQUIRE_FUSE=1", time: 25 * time.Minute},
	{name: "placement", pkg: "integration/fleet", run: "^TestPlacement", env: "SCOPEFS_TEST_VOLUME=nfs REQUIRE_FUSE=1", time: 10 * time.Minute},
}

// TestNFS boots Linux 6.12 and runs the tests of shared file systems on the kernel's own NFS.
func TestNFS(t *testing.T) {
	kernels := os.Getenv(directoryEnv)
	if kernels == "" {
		t.Skip("make test-nfs sets " + directoryEnv)
	}
	const version = "6.12"
	work := t.TempDir()
	g := &guest{version: version, kernel: filepath.Join(kernels, version), disk: makeDisk(t, work, "", shares), suites: shares,
		console: filepath.Join(kernels, "nfs.console"), log: filepath.Join(kernels, "nfs.log")}
	g.initramfs = makeInitramfs(t, g.kernel, filepath.Join(work, "initramfs"), "nfs", "nfsv4", "nfsd", "veth", "sch_netem")
	began := time.Now()
	if err := g.run("kvm", "host"); g.release == "" {
		t.Logf("KVM boots no guest (%v): TCG", err)
		assert.NoError(t, g.run("tcg", "max"))
	}
	require.NotEmpty(t, g.release, "the kernel boots")
	t.Log(g.report(t, time.Since(began)))
	for _, s := range shares {
		if r := g.results[s.name]; r != nil {
			t.Logf("%s:\n%s", s.name, r.output.String())
		}
	}
}
