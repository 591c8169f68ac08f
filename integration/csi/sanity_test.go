package csi

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/scopefs/scopefs/integration/harness"
)

const suiteEnv = "SCOPEFS_TEST_CSI_SUITE"

// TestSanity runs the suite of kubernetes-csi. An ephemeral volume has no controller, so the connection to the plugin has
// one, in kubelet's place: it makes a volume of each pod, with the attributes that kubelet sets. The suite runs in a process of
// its own: Ginkgo takes neither go test's -parallel nor its -count.
func TestSanity(t *testing.T) {
	if os.Getenv(suiteEnv) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSanity$", "-test.timeout=5m")
		cmd.Env = append(os.Environ(), suiteEnv+"=1", "SCOPEFS_TEST_PROGRAM="+harness.Program)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	n := newNode(t, "")
	var made atomic.Int64
	var last pod
	next := func() pod {
		return pod{uid: fmt.Sprintf("sanity-%d", made.Load()), namespace: "team-a", account: "builder", attributes: map[string]string{"agent": "one"}}
	}
	kubelet := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		switch out := reply.(type) {
		case *spec.GetPluginCapabilitiesResponse:
			controller := &spec.PluginCapability_Service{Type: spec.PluginCapability_Service_CONTROLLER_SERVICE}
			out.Capabilities = []*spec.PluginCapability{{Type: &spec.PluginCapability_Service_{Service: controller}}}
			return nil
		case *spec.ControllerGetCapabilitiesResponse, *spec.DeleteVolumeResponse:
			return nil
		case *spec.CreateVolumeResponse:
			out.Volume = &spec.Volume{VolumeId: "csi-" + last.uid, VolumeContext: n.request(last).VolumeContext}
			return nil
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	config := sanity.NewTestConfig()
	config.Address = n.socket()
	config.DialOptions = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(kubelet)}
	config.StagingPath = filepath.Join(n.dir, "staging")
	config.CreateTargetDir = func(string) (string, error) {
		made.Add(1)
		last = next()
		dir := filepath.Dir(n.target(last))
		return dir, os.MkdirAll(dir, 0o755)
	}
	config.RemoveTargetPath = os.Remove
	config.CheckPath = func(at string) (sanity.PathKind, error) {
		info, err := os.Lstat(at)
		switch {
		case os.IsNotExist(err):
			return sanity.PathIsNotFound, nil
		case err != nil:
			return sanity.PathIsOther, err
		case info.IsDir():
			return sanity.PathIsDir, nil
		}
		return sanity.PathIsOther, nil
	}
	suite, report := ginkgo.GinkgoConfiguration()
	suite.SkipStrings = []string{"Controller Service"} // it would test the one of this test
	report.NoColor, report.Succinct = true, true
	gomega.RegisterFailHandler(ginkgo.Fail)
	tests := sanity.GinkgoTest(&config)
	require.True(t, ginkgo.RunSpecs(t, "CSI sanity", suite, report))
	tests.Finalize()
	published := 0
	for _, e := range n.Events("one") {
		if e.Outcome == "volume published" {
			published++
		}
	}
	require.NotZero(t, published, "the suite has published nothing")
}
