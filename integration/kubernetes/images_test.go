package kubernetes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// The manifests name these images, which come from no registry.
const (
	pauseImage  = "scopefs.example/pause:1"
	debianImage = "docker.io/library/debian:12-slim" // of the examples; here it is BusyBox alone
	pluginImage = "registry.example/scopefs-csi:test"
)

// images makes the images' archives. The plugin's is what packaging/kubernetes/Containerfile says.
func (c *cluster) images(t testing.TB) {
	t.Helper()
	text, err := os.ReadFile("../../packaging/kubernetes/Containerfile")
	require.NoError(t, err)
	require.Contains(t, string(text), "FROM scratch\nCOPY scopefs-csi /scopefs-csi\nENTRYPOINT [\"/scopefs-csi\"]\n")
	busybox, err := os.ReadFile("/usr/bin/busybox")
	require.NoError(t, err)
	plugin, err := os.ReadFile(harness.Program + "-csi")
	require.NoError(t, err)
	shell := map[string][]byte{"bin/busybox": busybox}
	c.image(t, "pause", pauseImage, []string{"/bin/busybox", "sleep", "1000000000"}, shell)
	c.image(t, "debian", debianImage, nil, shell)
	c.image(t, "scopefs-csi", pluginImage, []string{"/scopefs-csi"}, map[string][]byte{"scopefs-csi": plugin})
}

// image writes an archive of an image with one layer: the image-spec's layout.
func (c *cluster) image(t testing.TB, name, ref string, entrypoint []string, files map[string][]byte) {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	dir := func(name string) {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}))
	}
	for _, name := range []string{"bin/", "etc/", "proc/", "sys/", "dev/", "tmp/", "workspace/"} {
		dir(name)
	}
	for name, text := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(text))}))
		_, err := w.Write(text)
		require.NoError(t, err)
		if filepath.Base(name) == "busybox" {
			for applet := range strings.FieldsSeq("sh sleep cat ls mv ln rm mkdir stat echo id mount touch readlink") {
				require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox"}))
			}
		}
	}
	require.NoError(t, w.Close())

	blobs := map[string][]byte{}
	type descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	put := func(kind string, text []byte) descriptor {
		sum := fmt.Sprintf("%x", sha256.Sum256(text))
		blobs["blobs/sha256/"+sum] = text
		return descriptor{MediaType: "application/vnd.oci.image." + kind, Digest: "sha256:" + sum, Size: len(text)}
	}
	encode := func(v any) []byte {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		return text
	}
	root := put("layer.v1.tar", layer.Bytes())
	config := put("config.v1+json", encode(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{root.Digest}},
	}))
	manifest := put("manifest.v1+json", encode(map[string]any{"schemaVersion": 2, "config": config, "layers": []descriptor{root}}))
	manifest.Annotations = map[string]string{"io.containerd.image.name": ref}
	blobs["index.json"] = encode(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifest}})
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion": "1.0.0"}`)
	var archive bytes.Buffer
	w = tar.NewWriter(&archive)
	for name, text := range blobs {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))}))
		_, err := w.Write(text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	c.file("images/"+name+".tar", archive.String())
}
