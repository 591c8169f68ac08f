package servertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// Objects is an S3 server, versitygw, with the bucket "store" and the access key
// "operator".
type Objects struct {
	*Server
	Address string // host and port
	Dir     string // the bucket: an object is a file
}

// StartObjects starts an S3 server on a free port of the loopback interface. It can have buckets with versions and locks.
func StartObjects(t testing.TB, secret string) Objects {
	t.Helper()
	need.All(t, "an S3 server, which takes a minute to build")
	program, dir, address := need.Program(t, "versitygw"), t.TempDir(), FreeAddress(t)
	for _, name := range []string{"buckets/store", "meta", "iam", "versions"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	s := Start(t, func() *exec.Cmd {
		cmd := exec.Command(program, "--port", address, "--quiet", "--keep-alive", "--iam-dir", filepath.Join(dir, "iam"),
			"posix", "--versioning-dir", filepath.Join(dir, "versions"), "--sidecar", filepath.Join(dir, "meta"), filepath.Join(dir, "buckets"))
		cmd.Env = []string{"ROOT_ACCESS_KEY=operator", "ROOT_SECRET_KEY=" + secret}
		return cmd
	}, func() bool { return accepts(address) })
	return Objects{s, address, filepath.Join(dir, "buckets/store")}
}
