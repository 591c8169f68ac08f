package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestCluster applies the manifests to the API server, and has pods with views, attackers and restarts on the node. Its subtests
// share the cluster, and the last one crashes the node.
func TestCluster(t *testing.T) {
	need.Target(t, "test-kubernetes", nodeEnv, "1")
	c := newCluster(t)
	c.install()
	for _, test := range []struct {
		name string
		do   func(*cluster)
	}{
		{"manifests", (*cluster).testManifests},
		{"examples", (*cluster).testExamples},
		{"refused", (*cluster).testRefused},
		{"subpath", (*cluster).testSubPath},
		{"delete", (*cluster).testDelete},
		{"restarts", (*cluster).testRestarts},
		{"crash", (*cluster).testCrash},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer func(t testing.TB) { c.T = t }(c.T)
			c.T = t
			test.do(c)
		})
	}
}

const agents = "agents" // the namespace of the examples

// install does what docs/kubernetes.md says: the rules and the image's tag are the operator's.
func (c *cluster) install() {
	t := c.T
	source, err := filepath.Abs("../../packaging/kubernetes")
	require.NoError(t, err)
	require.NoError(t, os.CopyFS(filepath.Join(c.dir, "packaging"), os.DirFS(source)))
	text, err := os.ReadFile(filepath.Join(source, "kustomization.yaml"))
	require.NoError(t, err)
	require.Contains(t, string(text), "newTag: latest")
	c.file("packaging/kustomization.yaml", strings.ReplaceAll(string(text), "newTag: latest", "newTag: test"))
	for name, text := range map[string]string{"agent-7": "of 7", "agent-8": "of 8", "agent-9": "of 9", "team-a-1": "of team-a"} {
		dir := filepath.Join("/srv/agents", name)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "reference"), 0o755))
		for _, file := range []string{"file", ".env", "reference/file"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
		}
		for _, at := range []string{"", "file", ".env", "reference", "reference/file"} {
			require.NoError(t, os.Chown(filepath.Join(dir, at), 1000, 1000))
		}
	}
	c.kubectl("apply", "-k", filepath.Join(c.dir, "packaging"))
	for _, name := range []string{"namespace", "definitions"} {
		c.kubectl("apply", "-f", filepath.Join(c.dir, "packaging/examples", name+".yaml"))
	}
	c.startPlugin()
}

const plugin = "scopefs-csi" // the name of the plugin's pod, of its service account and of its namespace's DaemonSet

// startPlugin makes the pod that the controller of DaemonSets would make of the DaemonSet, and waits until kubelet has the plugin.
func (c *cluster) startPlugin() {
	c.T.Helper()
	out, err := c.kubectlWith(c.pluginPod(), "-n", "scopefs", "apply", "-f", "-")
	require.NoError(c.T, err, out)
	c.ready("scopefs", plugin)
	c.registered()
}

// pluginPod returns the pod of the DaemonSet that the API server has.
func (c *cluster) pluginPod() string {
	c.T.Helper()
	var set apps.DaemonSet
	require.NoError(c.T, json.Unmarshal([]byte(c.kubectl("-n", "scopefs", "get", "daemonset", plugin, "-o", "json")), &set))
	pod := core.Pod{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	pod.Name, pod.Spec.NodeName = plugin, nodeName
	text, err := json.Marshal(pod)
	require.NoError(c.T, err)
	return string(text)
}

// registered waits until kubelet has the plugin.
func (c *cluster) registered() {
	c.T.Helper()
	c.Eventually("kubelet has the plugin", func() bool {
		return c.try("get", "csinode", nodeName, "-o", "jsonpath={.spec.drivers[*].name}") == "csi.scopefs"
	})
}

// testManifests: the API server gives the plugin no rights, a team the right to its own ConfigMap, and takes the plugin's pod in no
// namespace but one for privileged pods.
func (c *cluster) testManifests() {
	t := c.T
	can := func(user string, words ...string) string {
		return c.try(append([]string{"auth", "can-i", "--quiet=false", "--as=" + user, "--as-group=system:authenticated"}, words...)...)
	}
	for _, what := range []string{"list pods -A", "get secrets -A", "get configmaps -n scopefs", "create pods -n scopefs", "patch nodes", "update csinodes"} {
		assert.Contains(t, can("system:serviceaccount:scopefs:"+plugin, strings.Fields(what)...), "no", what)
	}
	assert.Equal(t, "yes", can("someone", "--as-group=team-a", "update", "configmap/team-a", "-n", "scopefs"))
	assert.Contains(t, can("someone", "--as-group=team-a", "update", "configmap/scopefs-csi", "-n", "scopefs"), "no")
	assert.Contains(t, can("someone", "--as-group=team-a", "create", "configmaps", "-n", "scopefs"), "no")

	c.kubectl("create", "namespace", "elsewhere")
	c.kubectl("-n", "elsewhere", "create", "serviceaccount", plugin)
	out, err := c.kubectlWith(c.pluginPod(), "-n", "elsewhere", "apply", "-f", "-")
	assert.Error(t, err)
	assert.Contains(t, out, `violates PodSecurity "restricted:latest"`)
}

// text returns a pod of the examples with another name, agent, service account, program and path in the volume.
func (c *cluster) text(name, account, agent, script, subPath string) string {
	text, err := os.ReadFile(filepath.Join(c.dir, "packaging/examples/pod.yaml"))
	require.NoError(c.T, err)
	all := string(text)
	for _, change := range [][2]string{
		{"  name: agent-7\n", "  name: " + name + "\n"},
		{"serviceAccountName: agent\n", "serviceAccountName: " + account + "\n"},
		{"agent: agent-7\n", "agent: " + agent + "\n"},
		{"command: [sleep, infinity]\n", "command: [sh, -c, " + strconv.Quote("trap 'exit 0' TERM; "+script) + "]\n"},
		{"mountPropagation: HostToContainer}", "mountPropagation: HostToContainer" + subPath + "}"},
	} {
		require.Equal(c.T, 1, strings.Count(all, change[0]), change[0])
		all = strings.ReplaceAll(all, change[0], change[1])
	}
	return all
}

const idle = "while :; do sleep 1; done"

// run starts such a pod, and waits until it is ready.
func (c *cluster) run(name, agent string) {
	c.T.Helper()
	c.apply(c.text(name, "agent", agent, idle, ""))
	c.ready(agents, name)
}

// testExamples: the pods of the examples, as they are, have their views and nothing beside.
func (c *cluster) testExamples() {
	t := c.T
	for _, name := range []string{"pod", "reviewer"} {
		c.kubectl("apply", "-f", filepath.Join(c.dir, "packaging/examples", name+".yaml"))
	}
	c.run("other", "agent-8")
	c.ready(agents, "agent-7")
	c.ready(agents, "team-a-1")
	c.says(agents, "agent-7", "cat file; ls -a; cat reference/file", "of 7.\n..\nfile\nreference\nof 7")
	c.says(agents, "other", "cat file", "of 8")
	c.says(agents, "agent-7", "echo by 7 >new; cat new", "by 7")
	assert.Equal(t, "by 7\n", harness.ReadAll(t, "/srv/agents/agent-7/new"))
	for _, script := range []string{"cat .env", "echo x >reference/file", "rm reference/file", "ln -s /srv/agents/agent-8 link", "cat ../agent-8/file"} {
		out, err := c.sh(agents, "agent-7", script)
		assert.Error(t, err, "%s: %s", script, out)
	}
	// The ConfigMap of the team narrows, and its next version holds in the view that is mounted.
	c.says(agents, "team-a-1", "cat file; ls -a", "of team-a.\n..\nfile\nreference")
	out, err := c.sh(agents, "team-a-1", "echo x >new")
	assert.Error(t, err, out)
	c.kubectl("-n", "scopefs", "patch", "configmap", "team-a", "--type=merge", "-p", `{"data": {"reviewer.yaml": "view: {paths: {\"reference/**\": hide}}\n"}}`)
	c.Eventually("the next version of the ConfigMap holds", func() bool {
		out, err := c.sh(agents, "team-a-1", "echo x >new && ls")
		return err == nil && out == "file\nnew"
	})
	out, err = c.sh(agents, "team-a-1", "cat reference/file")
	assert.Error(t, err, out)
	for _, name := range []string{"agent-7", "other", "team-a-1"} {
		c.remove(agents, name)
	}
	c.recorded("agent-8", "volume unpublished")
}

// recorded waits for an event of an agent's volumes.
func (c *cluster) recorded(agent, outcome string) {
	c.T.Helper()
	c.Eventually(outcome+" of "+agent+" is recorded", func() bool {
		for _, e := range c.Events(agent) {
			if e.Outcome == outcome {
				return true
			}
		}
		return false
	})
}

// testRefused: a pod that no rule fits does not start, and its events say why.
func (c *cluster) testRefused() {
	c.kubectl("-n", agents, "create", "serviceaccount", "nobody")
	c.apply(c.text("refused-account", "nobody", "agent-9", idle, ""))
	c.apply(c.text("refused-agent", "agent", "team-a-1", idle, ""))
	c.apply(strings.ReplaceAll(c.text("refused-key", "agent", "agent-9", idle, ""), `paths: {"reference/**": read}`, "allow_other: false, root: /"))
	c.event(agents, "refused-account", "FailedMount", "no rule", "nobody")
	c.event(agents, "refused-agent", "FailedMount", "no rule", "team-a-1")
	c.event(agents, "refused-key", "FailedMount", "definition")
	c.recorded("agent-9", "volume refused")
	for _, name := range []string{"refused-account", "refused-agent", "refused-key"} {
		for _, status := range c.pod(agents, name).Status.ContainerStatuses {
			assert.Nil(c.T, status.State.Running, name)
		}
		c.remove(agents, name)
	}
	assert.Zero(c.T, c.Mounted(kubelets))
}

// testSubPath: kubelet resolves a subPath in the view as root of the node. It leads nowhere else, neither by a link that another
// node has made (CVE-2017-1002101) nor by one that is exchanged meanwhile (CVE-2021-25741).
func (c *cluster) testSubPath() {
	t := c.T
	dir := "/srv/agents/agent-9"
	require.NoError(t, os.MkdirAll("/srv/secret", 0o755))
	require.NoError(t, os.WriteFile("/srv/secret/file", []byte("secret"), 0o644))
	for link, to := range map[string]string{"absolute": "/srv/secret", "relative": "../../secret", "race-link": "../../secret"} {
		require.NoError(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "race"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "race/file"), []byte("mine"), 0o644))
	c.apply(c.text("sub", "agent", "agent-9", idle, ", subPath: reference"))
	c.ready(agents, "sub")
	c.says(agents, "sub", "cat file; ls -a", "of 9.\n..\nfile")
	for _, link := range []string{"absolute", "relative"} {
		c.apply(c.text("sub-"+link, "agent", "agent-9", idle, ", subPath: "+link))
		c.event(agents, "sub-"+link, "Failed", "subPath")
		c.remove(agents, "sub-"+link)
	}

	stop, ended := make(chan struct{}), make(chan int, 1)
	halt := sync.OnceFunc(func() { close(stop) })
	defer halt()
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				ended <- n
				return
			default:
				err := unix.Renameat2(unix.AT_FDCWD, dir+"/race", unix.AT_FDCWD, dir+"/race-link", unix.RENAME_EXCHANGE)
				if err != nil && !errors.Is(err, unix.EBUSY) {
					ended <- -1
					return
				}
				time.Sleep(time.Duration(n%10) * 40 * time.Millisecond) // slow enough that some pods start
			}
		}
	}()
	const pods = 8
	for n := range pods { // each prints a line: a part of one is in no log
		c.apply(c.text(fmt.Sprintf("race-%d", n), "agent", "agent-9", "echo $(cat file || echo none); "+idle, ", subPath: race"))
	}
	started := 0
	for n := range pods {
		name := fmt.Sprintf("race-%d", n)
		c.Eventually(name+" has started, or cannot", func() bool {
			p := c.pod(agents, name)
			if len(p.Status.ContainerStatuses) == 0 {
				return false
			}
			state := p.Status.ContainerStatuses[0].State
			if state.Running == nil {
				return state.Waiting != nil && state.Waiting.Reason != "ContainerCreating"
			}
			out, err := c.kubectlWith("", "-n", agents, "logs", name)
			if err != nil || out == "" {
				return false
			}
			started++
			assert.Contains(t, []string{"mine", "none"}, strings.Fields(out)[len(strings.Fields(out))-1])
			assert.NotContains(t, out, "secret")
			return true
		})
	}
	halt()
	exchanges := <-ended
	assert.Positive(t, exchanges)
	t.Logf("%d of %d pods started during %d exchanges", started, pods, exchanges)
	if info, err := os.Lstat(dir + "/race"); assert.NoError(t, err) && !info.IsDir() {
		require.NoError(t, unix.Renameat2(unix.AT_FDCWD, dir+"/race", unix.AT_FDCWD, dir+"/race-link", unix.RENAME_EXCHANGE))
	}
	c.apply(c.text("after", "agent", "agent-9", idle, ", subPath: race"))
	c.ready(agents, "after")
	c.says(agents, "after", "cat file", "mine")
	c.remove(agents, "after")
	for n := range pods {
		c.remove(agents, fmt.Sprintf("race-%d", n))
	}
	c.remove(agents, "sub")
	c.gone("agent-9")
}

// gone waits until the node has nothing of the pods of an agent whose definition a rule makes.
func (c *cluster) gone(agent string) {
	c.T.Helper()
	c.Eventually(agent+" is gone", func() bool { return c.Agent(agent).ID == "" })
	for _, p := range c.volumes() {
		assert.NotEqual(c.T, agent, p)
	}
}

// volumes returns the agents of the plugin's volumes.
func (c *cluster) volumes() (list []string) {
	text, err := os.ReadFile("/var/lib/scopefs-csi/volumes.json")
	require.NoError(c.T, err)
	for _, part := range strings.Split(string(text), `"agent":"`)[1:] {
		list = append(list, part[:strings.Index(part, `"`)])
	}
	return list
}

// testDelete: a pod's end takes no longer when its view does not answer, and leaves nothing.
func (c *cluster) testDelete() {
	t := c.T
	for _, stopped := range []bool{false, true} {
		c.apply(c.text("short", "agent", "agent-8", "while :; do cat file >/dev/null; sleep 0.1; done", ""))
		c.ready(agents, "short")
		uid := string(c.pod(agents, "short").UID)
		view := c.ViewPID("agent-8")
		if stopped {
			require.NoError(t, syscall.Kill(view, syscall.SIGSTOP))
		}
		took := c.remove(agents, "short")
		t.Logf("a pod, its view stopped: %v: gone after %v", stopped, took.Round(time.Millisecond))
		c.Eventually("kubelet has removed its directory", func() bool {
			_, err := os.Lstat(filepath.Join(kubelets, "pods", uid))
			return os.IsNotExist(err)
		})
		c.gone("agent-8")
		if stopped {
			_ = syscall.Kill(view, syscall.SIGCONT)
		}
	}
}

// testRestarts: a program in a pod notices nothing of a restart of the plugin, the daemon and kubelet.
func (c *cluster) testRestarts() {
	t := c.T
	const work = `n=0; exec 9<file; while :; do n=$((n+1)); { echo $n >count.new && mv count.new count && cat file >/dev/null && ls >/dev/null; } || echo "failed: $n"; [ $((n%20)) -gt 0 ] || echo $n; sleep 0.05; done`
	c.apply(c.text("worker", "agent", "agent-9", work, ""))
	c.ready(agents, "worker")
	uid := c.pod(agents, "worker").UID
	goes := func(what string) {
		t.Helper()
		count := func() int {
			text, _ := os.ReadFile("/srv/agents/agent-9/count")
			n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
			return n
		}
		first := 0
		c.Eventually(what+": there is a count", func() bool { first = count(); return first > 0 })
		c.Eventually(what+": the worker goes on", func() bool { return count() > first+20 })
		p := c.pod(agents, "worker")
		assert.Equal(t, uid, p.UID)
		assert.Zero(t, p.Status.ContainerStatuses[0].RestartCount, what)
	}
	goes("at first")
	view := c.ViewPID("agent-9")

	c.remove("scopefs", plugin)
	goes("without a plugin")
	c.startPlugin()
	plugins := harness.Running("--rules=/etc/scopefs/csi.yaml", "--definitions=/definitions")
	require.Len(t, plugins, 1)
	require.NoError(t, syscall.Kill(plugins[0], syscall.SIGKILL))
	goes("after the plugin's crash")
	c.registered()
	c.run("after-plugin", "agent-8")

	c.Terminate()
	goes("without a daemon")
	c.startDaemon()
	goes("after a restart of the daemon")
	c.Kill()
	c.startDaemon()
	goes("after the daemon's crash")
	assert.Equal(t, view, c.ViewPID("agent-9"))
	c.says(agents, "after-plugin", "cat file", "of 8")

	require.NoError(t, c.kubelet.Process.Kill())
	goes("without kubelet")
	c.startKubelet(t)
	c.run("after-kubelet", "agent-8")
	goes("after kubelet's crash")
	c.registered()

	// A view's process ends: its container has the new one.
	require.NoError(t, syscall.Kill(c.ViewPID("agent-8"), syscall.SIGKILL))
	c.Eventually("the containers have the new view", func() bool {
		for _, name := range []string{"after-plugin", "after-kubelet"} {
			if out, err := c.sh(agents, name, "cat /workspace/file"); err != nil || out != "of 8" {
				return false
			}
		}
		return true
	})
	assert.NotContains(t, c.kubectl("-n", agents, "logs", "worker"), "failed")
	for _, name := range []string{"worker", "after-plugin", "after-kubelet"} {
		c.remove(agents, name)
	}
	c.gone("agent-9")
	c.gone("agent-8")
}

// testCrash: the node ends without a warning. After its boot, pods have their views again, and nothing is left of the one that
// was deleted meanwhile.
func (c *cluster) testCrash() {
	t := c.T
	c.run("orphan", "agent-8")
	c.run("stays", "agent-9")
	orphan := string(c.pod(agents, "orphan").UID)
	c.crash(t)
	require.DirExists(t, filepath.Join(kubelets, "pods", orphan))
	c.kubectl("-n", agents, "delete", "pod", "orphan", "--force", "--grace-period=0")
	c.runtime(t)
	c.startDaemon()
	c.startKubelet(t)
	c.Eventually("the pod that stays has its view", func() bool {
		out, err := c.sh(agents, "stays", "cat file")
		return err == nil && out == "of 9"
	})
	c.Eventually("kubelet has removed the orphan's directory", func() bool {
		_, err := os.Lstat(filepath.Join(kubelets, "pods", orphan))
		return os.IsNotExist(err)
	})
	c.gone("agent-8")
	c.remove(agents, "stays")
	c.gone("agent-9")
	assert.Empty(t, c.volumes())
	assert.Zero(t, c.Mounted(kubelets))
}
