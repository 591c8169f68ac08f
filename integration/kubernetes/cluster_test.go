package kubernetes

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"

	"github.com/scopefs/scopefs/integration/harness"
)

const (
	nodeName    = "node-1"
	nodeAddress = "10.45.0.1"
	kubelets    = "/var/lib/kubelet"
	containerd  = "/run/containerd/containerd.sock"
)

// cluster is the API server with its store, the scheduler, and one node: the container runtime, kubelet and
// scopefs's daemon.
type cluster struct {
	*harness.Host
	all   testing.TB // of the whole cluster; T may be a subtest's
	dir   string     // files of all of these
	group string     // the control group of pods

	control []*exec.Cmd // what survives the node's crash
	kubelet *exec.Cmd
}

// prepare makes the node: /var/lib, /var/log, /srv, /run and the network are its own.
func prepare(t testing.TB) *cluster {
	t.Helper()
	dir := t.TempDir()
	c := &cluster{all: t, dir: dir, group: os.Getenv(cgroupEnv)}
	require.NoError(t, unix.Sethostname([]byte(nodeName)))
	unmount(t, func(m *mountinfo.Info) bool { return strings.HasPrefix(m.FSType, "fuse") && m.Mountpoint != "/" }) // of others, who would wait for it
	require.NoError(t, unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""))
	for _, at := range []string{"/var/lib", "/var/log", "/srv"} {
		from := filepath.Join(dir, at)
		require.NoError(t, os.MkdirAll(from, 0o755))
		require.NoError(t, unix.Mount(from, at, "", unix.MS_BIND, ""))
		require.NoError(t, unix.Mount("", at, "", unix.MS_PRIVATE, ""))
		require.NoError(t, unix.Mount("", at, "", unix.MS_SHARED, ""))
	}
	// Kubelet sets these for the whole host.
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"} {
		text, err := os.ReadFile("/proc/sys/" + name)
		require.NoError(t, err)
		own := c.file("sysctl/"+name, string(text))
		require.NoError(t, unix.Mount(own, "/proc/sys/"+name, "", unix.MS_BIND, ""))
	}
	makeGroups(t, c.group)
	run(t, "ip", "link", "set", "lo", "up")
	run(t, "ip", "link", "add", "name", "host0", "type", "bridge")
	run(t, "ip", "address", "add", nodeAddress+"/24", "dev", "host0")
	run(t, "ip", "link", "set", "host0", "up")
	c.boot(t)
	// The daemon's directories are those of the package, as the manifests name them.
	t.Setenv("SCOPEFS_RUN", "/run/scopefs")
	c.Host = harness.LayOut(t, nil)
	c.Timeout = testTime
	return c
}

// newCluster starts everything.
func newCluster(t testing.TB) *cluster {
	t.Helper()
	c := prepare(t)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		logs, _ := filepath.Glob(filepath.Join(c.dir, "logs/*"))
		for _, name := range logs {
			t.Logf("%s:\n%s", filepath.Base(name), tail(name, 40))
		}
		out, _ := exec.Command(c.program("kubectl"), "--kubeconfig", c.config("admin"), "get", "pods,events", "-A", "-o", "wide").CombinedOutput()
		t.Logf("pods:\n%s", out)
	})
	t.Cleanup(func() {
		c.end(t, nil)
		unmountBelow(t, "/run", "/var/lib", "/var/log", "/srv")
	})
	c.serve(t)
	c.images(t)
	c.runtime(t)
	c.startDaemon()
	c.startKubelet(t)
	c.Eventually("the node is ready", func() bool {
		return strings.Contains(c.try("get", "node", nodeName, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`), "True")
	})
	c.kubectl("taint", "node", nodeName, "node.kubernetes.io/not-ready-") // as the controller of nodes does
	return c
}

// boot gives the node an empty /run, as a boot does.
func (c *cluster) boot(t testing.TB) {
	t.Helper()
	require.NoError(t, unix.Mount("none", "/run", "tmpfs", 0, "mode=755"))
}

// unmount unmounts what f reports.
func unmount(t testing.TB, f func(*mountinfo.Info) bool) {
	t.Helper()
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !f(m), false })
	require.NoError(t, err)
	for _, m := range slices.Backward(all) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) { // with the one above it
			require.NoError(t, err, m.Mountpoint)
		}
	}
}

// unmountBelow unmounts what is mounted below these directories, and at those that do not end in a slash.
func unmountBelow(t testing.TB, dirs ...string) {
	t.Helper()
	unmount(t, func(m *mountinfo.Info) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool {
			return m.Mountpoint == dir || strings.HasPrefix(m.Mountpoint, strings.TrimSuffix(dir, "/")+"/")
		})
	})
}

// file writes a file of the cluster.
func (c *cluster) file(name, text string) string {
	at := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		panic(err)
	}
	return at
}

func (c *cluster) program(name string) string { return filepath.Join(os.Getenv(programsEnv), name) }

// begin starts a program whose output goes to a log.
func (c *cluster) begin(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	log := filepath.Join(c.dir, "logs", filepath.Base(program))
	require.NoError(t, os.MkdirAll(filepath.Dir(log), 0o755))
	f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	defer f.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = f, f
	require.NoError(t, cmd.Start())
	go func() { _ = cmd.Wait() }()
	return cmd
}

// config returns a configuration of a client of the API server.
func (c *cluster) config(user string) string {
	return c.file("config/"+user, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", certificate-authority: %s/certificates/apiserver.crt}}]
users: [{name: u, user: {token: token-of-%s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, c.dir, user))
}

// serve starts the API server, whose admission holds all pods to PodSecurity's level restricted unless a namespace says
// otherwise, and the scheduler. Kubelet has the rights of a node.
func (c *cluster) serve(t testing.TB) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	private := c.file("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	tokens := c.file("tokens.csv", "token-of-admin,admin,admin,system:masters\ntoken-of-kubelet,system:node:"+nodeName+",kubelet,system:nodes\n")
	admission := c.file("admission.yaml", `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: PodSecurity
    configuration:
      apiVersion: pod-security.admission.config.k8s.io/v1
      kind: PodSecurityConfiguration
      defaults: {enforce: restricted, enforce-version: latest}
      exemptions: {namespaces: [kube-system]}
`)
	c.control = append(c.control, c.begin(t, c.program("server"), "--data-dir", filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn"))
	c.control = append(c.control, c.begin(t, c.program("kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379", "--cert-dir="+filepath.Join(c.dir, "certificates"),
		"--service-account-issuer=https://cluster.example", "--service-account-signing-key-file="+private, "--service-account-key-file="+private,
		"--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC", "--token-auth-file="+tokens, "--allow-privileged",
		"--enable-admission-plugins=NodeRestriction", "--admission-control-config-file="+admission,
		"--bind-address=127.0.0.1", "--advertise-address="+nodeAddress, "--kubelet-preferred-address-types=InternalIP"))
	admin := c.config("admin")
	c.Eventually("the API server is ready", func() bool {
		return exec.Command(c.program("kubectl"), "--kubeconfig", admin, "get", "--raw", "/readyz").Run() == nil
	})
	c.control = append(c.control, c.begin(t, c.program("kube-scheduler"), "--kubeconfig="+admin, "--leader-elect=false", "--bind-address=127.0.0.1"))
}

// runtime starts containerd.
func (c *cluster) runtime(t testing.TB) {
	t.Helper()
	c.file("cni/net.conflist", `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.44.0.0/24"}]]}}]}`)
	config := c.file("containerd.toml", fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd/state"
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = %q
`, containerd, pauseImage, filepath.Join(c.dir, "cni")))
	require.NoError(t, os.MkdirAll("/run/containerd", 0o700))
	c.begin(t, "/usr/bin/containerd", "--config", config)
	c.Eventually("containerd answers", func() bool { return exec.Command("ctr", "--address", containerd, "version").Run() == nil })
	for _, archive := range []string{"pause", "debian", "scopefs-csi"} {
		run(t, "ctr", "--address", containerd, "--namespace", "k8s.io", "images", "import", filepath.Join(c.dir, "images", archive+".tar"))
	}
}

// startDaemon starts scopefs's daemon, which ends with the cluster, and not with a subtest.
func (c *cluster) startDaemon() {
	c.T.Helper()
	defer func(t testing.TB) { c.T = t }(c.T)
	c.T = c.all
	c.Start()
}

func (c *cluster) startKubelet(t testing.TB) {
	t.Helper()
	config := c.file("kubelet.yaml", fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /%s
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://%s
evictionHard: {nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%", imagefs.inodesFree: "0%%", memory.available: "1Mi"}
imageGCHighThresholdPercent: 100
syncFrequency: 5s
`, c.group, containerd))
	c.kubelet = c.begin(t, c.program("kubelet"), "--config="+config, "--kubeconfig="+c.config("kubelet"), "--node-ip="+nodeAddress, "--hostname-override="+nodeName)
}

// end kills every process of the node, and of the whole cluster without keep.
func (c *cluster) end(t testing.TB, keep []*exec.Cmd) {
	t.Helper()
	stays := map[int]bool{1: true, os.Getpid(): true, os.Getppid(): true}
	for _, cmd := range keep {
		stays[cmd.Process.Pid] = true
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		left := 0
		names, _ := filepath.Glob("/proc/[0-9]*")
		for _, name := range names {
			pid, _ := strconv.Atoi(filepath.Base(name))
			if s := harness.StateOf(pid); !stays[pid] && s != 0 && s != 'Z' {
				left++
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if left == 0 {
			return
		}
		require.True(t, time.Now().Before(end), "%d processes of the node do not end", left)
	}
}

// crash ends the node without a warning, with all that a boot does not bring back: processes, mounts and /run.
func (c *cluster) crash(t testing.TB) {
	t.Helper()
	c.end(t, c.control)
	<-c.Ended
	unmount(t, func(m *mountinfo.Info) bool {
		return m.Mountpoint == "/run" || strings.HasPrefix(m.Mountpoint, "/run/") || strings.HasPrefix(m.Mountpoint, "/var/lib/")
	})
	c.boot(t)
}

// run runs a command, which must succeed.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return string(out)
}

// command returns a command line of kubectl.
func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.program("kubectl"), append([]string{"--kubeconfig", filepath.Join(c.dir, "config/admin")}, args...)...)
}

// kubectl runs kubectl, which must succeed, and returns what it printed.
func (c *cluster) kubectl(args ...string) string {
	c.T.Helper()
	out, err := c.kubectlWith("", args...)
	require.NoError(c.T, err, "kubectl %v: %s", args, out)
	return out
}

// kubectlWith runs kubectl with an input.
func (c *cluster) kubectlWith(input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := c.command(ctx, args...)
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}

// try is kubectl for what may fail.
func (c *cluster) try(args ...string) string {
	out, _ := c.kubectlWith("", args...)
	return out
}

// apply applies a text of objects.
func (c *cluster) apply(text string) {
	c.T.Helper()
	out, err := c.kubectlWith(text, "apply", "-f", "-")
	require.NoError(c.T, err, "%s\n%s", out, text)
}

// pod returns a pod, or one without a name if there is none.
func (c *cluster) pod(namespace, name string) (p core.Pod) {
	if out, err := c.kubectlWith("", "-n", namespace, "get", "pod", name, "-o", "json"); err == nil {
		require.NoError(c.T, json.Unmarshal([]byte(out), &p))
	}
	return p
}

// ready waits until all containers of a pod are ready.
func (c *cluster) ready(namespace, name string) {
	c.T.Helper()
	c.Eventually(name+" is ready", func() bool {
		for _, condition := range c.pod(namespace, name).Status.Conditions {
			if condition.Type == core.PodReady {
				return condition.Status == core.ConditionTrue
			}
		}
		return false
	})
}

// sh runs a script in a pod, and returns what it printed.
func (c *cluster) sh(namespace, name, script string) (string, error) {
	return c.kubectlWith("", "-n", namespace, "exec", name, "--", "sh", "-c", script)
}

// says checks what a script in a pod prints.
func (c *cluster) says(namespace, name, script, want string) {
	c.T.Helper()
	out, err := c.sh(namespace, name, script)
	require.NoError(c.T, err, "%s: %s", script, out)
	require.Equal(c.T, want, out, script)
}

// event waits for an event of a pod.
func (c *cluster) event(namespace, name string, words ...string) {
	c.T.Helper()
	c.Eventually(fmt.Sprintf("an event of %s has %q", name, words), func() bool {
		out := c.try("-n", namespace, "get", "events", "--field-selector", "involvedObject.name="+name, "-o", `jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
		for line := range strings.Lines(out) {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
				return true
			}
		}
		return false
	})
}

// remove deletes a pod, as its owner does, and waits until the API server has it no more. It returns how long that took.
func (c *cluster) remove(namespace, name string) time.Duration {
	c.T.Helper()
	begun := time.Now()
	c.kubectl("-n", namespace, "delete", "pod", name, "--grace-period=1", "--timeout=90s")
	return time.Since(begun)
}
