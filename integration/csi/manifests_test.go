package csi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	storage "k8s.io/api/storage/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// sandbox is the part of agent-sandbox's Sandbox that the example uses: api/v1beta1/sandbox_types.go there.
type sandbox struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		PodTemplate struct {
			Spec core.PodSpec `json:"spec"`
		} `json:"podTemplate"`
	} `json:"spec"`
}

// TestManifests: kustomize renders what packaging/kubernetes has, the types of the API have every field of it, and it has the
// settings that the plugin relies on.
func TestManifests(t *testing.T) {
	made := map[string]int{}
	var driver storage.CSIDriver
	var set apps.DaemonSet
	var pods []core.PodSpec
	var maps []core.ConfigMap
	for _, dir := range []string{"../../packaging/kubernetes", "../../packaging/kubernetes/examples"} {
		all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
		require.NoError(t, err)
		for _, r := range all.Resources() {
			text, err := r.AsYAML()
			require.NoError(t, err)
			made[r.GetKind()]++
			var pod core.Pod
			var inner sandbox
			into, ok := map[string]any{"Namespace": &core.Namespace{}, "ServiceAccount": &core.ServiceAccount{}, "ConfigMap": &core.ConfigMap{}, "CSIDriver": &driver,
				"DaemonSet": &set, "Pod": &pod, "Sandbox": &inner, "Role": &rbac.Role{}, "RoleBinding": &rbac.RoleBinding{}}[r.GetKind()]
			require.True(t, ok, "%s has no type here", r.GetKind())
			require.NoError(t, yaml.UnmarshalStrict(text, into), "%s", text)
			switch r.GetKind() {
			case "Pod":
				pods = append(pods, pod.Spec)
			case "Sandbox":
				pods = append(pods, inner.Spec.PodTemplate.Spec)
			case "ConfigMap":
				maps = append(maps, *into.(*core.ConfigMap))
			case "Role":
				for _, rule := range into.(*rbac.Role).Rules {
					assert.Equal(t, []string{"team-a"}, rule.ResourceNames, "a team writes its own ConfigMap alone")
				}
			}
		}
	}
	assert.Equal(t, map[string]int{"Namespace": 2, "ServiceAccount": 3, "ConfigMap": 2, "CSIDriver": 1, "DaemonSet": 1, "Pod": 2, "Sandbox": 1, "Role": 1, "RoleBinding": 1}, made,
		"the plugin needs no role")
	require.Len(t, maps, 2)
	assert.Contains(t, maps[0].Data, "csi.yaml")
	assert.Contains(t, maps[1].Data, "reviewer.yaml")
	for _, v := range set.Spec.Template.Spec.Volumes {
		assert.True(t, v.Name != maps[1].Name || *v.ConfigMap.Optional && v.ConfigMap.Name == maps[1].Name)
	}
	assert.Equal(t, "csi.scopefs", driver.Name)
	assert.Equal(t, []storage.VolumeLifecycleMode{storage.VolumeLifecycleEphemeral}, driver.Spec.VolumeLifecycleModes)
	assert.True(t, *driver.Spec.PodInfoOnMount)
	assert.False(t, *driver.Spec.AttachRequired)
	assert.False(t, *set.Spec.Template.Spec.AutomountServiceAccountToken)
	for _, c := range set.Spec.Template.Spec.Containers {
		privileged := c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
		assert.Equal(t, c.Name == "scopefs-csi", privileged, c.Name)
		assert.NotEqual(t, "scopefs-csi", c.Image, "the kustomization names an image")
	}
	require.Len(t, pods, 3)
	for _, p := range pods {
		require.Len(t, p.Volumes, 1)
		assert.Equal(t, "csi.scopefs", p.Volumes[0].CSI.Driver)
	}
}

// TestManifestRules: the rules of packaging/kubernetes give the pods of the examples what they want.
func TestManifestRules(t *testing.T) {
	n := newDefinitions(t)
	text, err := os.ReadFile("../../packaging/kubernetes/csi.yaml")
	require.NoError(t, err)
	require.Contains(t, string(text), "prefix: /srv/agents\n")
	n.Put("node/csi.yaml", strings.ReplaceAll(string(text), "/srv/agents", n.prefix))
	require.NoError(t, os.Mkdir(filepath.Join(n.prefix, "agent-7"), 0o755))
	p := pod{uid: "x", namespace: "agents", account: "agent", attributes: map[string]string{"agent": "agent-7", "definition": "view: {paths: {\"reference/**\": read}}\n"}}
	require.NoError(t, n.publish(p))
	require.NoError(t, n.unpublish(p))
	q := pod{uid: "q", namespace: "agents", account: "team-a", attributes: map[string]string{"agent": "team-a-1", "definitionFrom": "team-a/reviewer"}}
	n.team("team-a-1", nil)
	require.NoError(t, n.publish(q))
	require.NoError(t, n.unpublish(q))
	p.namespace = "default"
	fails(t, n.publish(p), codes.PermissionDenied, "no rule")
}
