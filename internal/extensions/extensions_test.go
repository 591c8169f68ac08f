package extensions

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const manifest = "gemini-extension.json"

func TestArchive(t *testing.T) {
	for name, c := range map[string]struct {
		files []tar.Header
		want  string // "": copied
	}{
		"plain":     {[]tar.Header{{Name: "a/b", Size: 1}, {Name: "a/l", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}}, ""},
		"settings":  {[]tar.Header{{Name: "./.env", Size: 1}}, ""},
		"out":       {[]tar.Header{{Name: "../b", Size: 1}}, `"../b" leads out of the extension: remove it`},
		"absolute":  {[]tar.Header{{Name: "/b", Size: 1}}, `"/b" leads out of the extension: remove it`},
		"by a link": {[]tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/b", Size: 1}}, "path escapes from parent"},
		"hard link": {[]tar.Header{{Name: "l", Typeflag: tar.TypeLink, Linkname: manifest}}, `"l" is no file, directory or symbolic link: remove it`},
		"device":    {[]tar.Header{{Name: "d", Typeflag: tar.TypeChar}}, `"d" is no file`},
		"FIFO":      {[]tar.Header{{Name: "f", Typeflag: tar.TypeFifo}}, `"f" is no file`},
		"twice":     {[]tar.Header{{Name: "b", Size: 1}, {Name: "b", Size: 1}}, "file exists"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			w := tar.NewWriter(&out)
			for _, h := range append([]tar.Header{{Name: manifest, Size: 1}}, c.files...) {
				h.Mode = 0o4777
				require.NoError(t, w.WriteHeader(&h))
				if h.Size > 0 {
					_, err := w.Write([]byte("x"))
					require.NoError(t, err)
				}
			}
			require.NoError(t, w.Close())
			dir, file := t.TempDir(), filepath.Join(t.TempDir(), "x.tar")
			require.NoError(t, os.WriteFile(file, out.Bytes(), 0o600))
			got, err := Copy(t.Context(), file, "", dir)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				assert.NoFileExists(t, filepath.Dir(dir)+"/b")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, dir, got)
			st, err := os.Lstat(filepath.Join(dir, manifest))
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o755), st.Mode())
			assert.NoFileExists(t, dir+"/.env")
		})
	}
}

func TestTooLarge(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, manifest), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "z"), nil, 0o600))
	require.NoError(t, os.Truncate(filepath.Join(dir, "z"), 2))
	out, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	defer out.Close()
	assert.ErrorContains(t, (&target{root: out, bytes: MaxBytes - 1}).directory(dir), "is larger than 512 MiB")
	assert.ErrorContains(t, (&target{root: out, files: MaxFiles}).directory(dir), "has more than 50000 files")
}
