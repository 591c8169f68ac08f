// Package csi tests the plugin for Kubernetes: as kubelet uses it, by the official suite, and with attackers.
package csi

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/scopefs/scopefs/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// node is a node of a cluster: a daemon, the plugin, and kubelet's directories.
type node struct {
	*harness.Host
	dir    string // kubelet's pods, the plugin's state, its socket and rules
	prefix string // a directory of the host or of a volume that pods share

	definitions string // the directory of ConfigMaps; "": none
	version     int    // of those

	cmd    *exec.Cmd
	log    strings.Builder
	client spec.NodeClient
	conn   *grpc.ClientConn
}

const rules = `
rules:
  - {namespace: team-a, service_account: builder, agents: [one, "two*"]}
  - {namespace: team-a, service_account: reader, agents: [one], access: read}
  - {namespace: team-b, service_account: "*", agents: ["b-*"], prefix: PREFIX, definition: {user: "0", view: {allow_other: true}}}
  - {namespace: team-c, service_account: "*", agents: ["c-*"], definition: {user: "0", view: {allow_other: true}}}
  - {namespace: team-d, service_account: "*", agents: ["d-*"], definition: {user: "1000"}}
`

// newNode starts the daemon and the plugin. The pods' directory is a mount whose mounts propagate, as kubelet's is.
func newNode(t testing.TB, settings string) *node {
	t.Helper()
	n := &node{Host: harness.LayOut(t, map[string]string{"one": "user: '0'\nview: {allow_other: true}", "two": "user: '0'"})}
	n.dir = filepath.Join(n.Base, "node")
	require.NoError(t, os.MkdirAll(n.pods(), 0o755))
	var err error
	n.prefix, err = os.MkdirTemp("", harness.TempPrefix)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(n.prefix, 0o755))
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(n.prefix)) })
	require.NoError(t, unix.Mount("none", n.pods(), "tmpfs", 0, ""))
	require.NoError(t, unix.Mount("", n.pods(), "", unix.MS_SHARED, ""))
	t.Cleanup(func() {
		// What a failed test has left is unmounted, too.
		for text, _ := os.ReadFile("/proc/self/mounts"); ; text, _ = os.ReadFile("/proc/self/mounts") {
			at := ""
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); strings.HasPrefix(f[1]+"/", n.pods()+"/") {
					at = f[1]
				}
			}
			if at == "" || !assert.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) {
				return
			}
		}
	})
	n.Put("scopefs.yaml", settings)
	n.Put("node/csi.yaml", strings.ReplaceAll(rules, "PREFIX", n.prefix))
	n.Put("agents/one/file", "of one")
	n.Start()
	n.plug()
	return n
}

func (n *node) pods() string   { return filepath.Join(n.dir, "pods") }
func (n *node) socket() string { return filepath.Join(n.dir, "csi.sock") }

// plug starts the plugin, and waits until it answers.
func (n *node) plug() {
	n.T.Helper()
	n.cmd = exec.Command(harness.Program, "--base", n.Base, "csi", "--socket", n.socket(), "--registration", filepath.Join(n.dir, "registry"), "--node", "node-1", "--rules", filepath.Join(n.dir, "csi.yaml"),
		"--definitions", n.definitions, "--pods", n.pods(), "--plugin-state", filepath.Join(n.dir, "state"))
	n.cmd.Stderr = &n.log
	require.NoError(n.T, n.cmd.Start())
	cmd := n.cmd
	n.T.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // again, where unplug has waited
		if n.T.Failed() {
			n.T.Logf("plugin:\n%s", n.log.String())
		}
	})
	conn, err := grpc.NewClient("unix:"+n.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(n.T, err)
	n.T.Cleanup(func() { conn.Close() })
	n.conn, n.client = conn, spec.NewNodeClient(conn)
	n.Eventually("the plugin answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := spec.NewIdentityClient(conn).GetPluginInfo(ctx, &spec.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		return err == nil
	})
}

func (n *node) unplug(sig syscall.Signal) {
	n.T.Helper()
	require.NoError(n.T, n.cmd.Process.Signal(sig))
	_ = n.cmd.Wait()
}

// pod is a pod of the test, of which kubelet has made the directory.
type pod struct {
	uid, namespace, account string
	attributes              map[string]string
	readOnly                bool
}

func (n *node) target(p pod) string {
	return filepath.Join(n.pods(), p.uid, "volumes/kubernetes.io~csi/view/mount")
}

// request is what kubelet sends for a pod.
func (n *node) request(p pod) *spec.NodePublishVolumeRequest {
	set := map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "pod-" + p.uid, "csi.storage.k8s.io/pod.namespace": p.namespace,
		"csi.storage.k8s.io/pod.uid": p.uid, "csi.storage.k8s.io/serviceAccount.name": p.account,
	}
	for key, value := range p.attributes {
		set[key] = value
	}
	return &spec.NodePublishVolumeRequest{VolumeId: "csi-" + p.uid, TargetPath: n.target(p), VolumeContext: set, Readonly: p.readOnly, VolumeCapability: mountable}
}

var mountable = &spec.VolumeCapability{
	AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
	AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
}

func (n *node) publish(p pod) error {
	n.T.Helper()
	require.NoError(n.T, os.MkdirAll(filepath.Dir(n.target(p)), 0o755))
	return n.send(n.request(p))
}

// send repeats a request as kubelet does, which is told that another one runs.
func (n *node) send(r *spec.NodePublishVolumeRequest) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		if _, err = n.client.NodePublishVolume(ctx, r); status.Code(err) != codes.Aborted {
			return err
		}
	}
}

func (n *node) unpublish(p pod) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		r := &spec.NodeUnpublishVolumeRequest{VolumeId: "csi-" + p.uid, TargetPath: n.target(p)}
		if _, err = n.client.NodeUnpublishVolume(ctx, r); status.Code(err) != codes.Aborted {
			return err
		}
	}
}

// reads checks that a file of the view at the pod's target has a text.
func (n *node) reads(p pod, name, want string) {
	n.T.Helper()
	text, err := os.ReadFile(filepath.Join(n.target(p), name))
	require.NoError(n.T, err)
	assert.Equal(n.T, want, string(text))
}

// recorded waits for an event of volumes of an agent.
func (n *node) recorded(agent, outcome, path string) {
	n.T.Helper()
	n.Eventually(fmt.Sprintf("%s of %s is recorded", outcome, agent), func() bool {
		for _, e := range n.Events(agent) {
			if e.Outcome == outcome && e.Path == path {
				return true
			}
		}
		return false
	})
}

// fails checks that a request fails with a code, and with words that tell why.
func fails(t testing.TB, err error, want codes.Code, words string) {
	t.Helper()
	require.Error(t, err)
	assert.Equal(t, want, status.Code(err), "%v", err)
	assert.ErrorContains(t, err, words)
}
