package pages

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
)

// TestAssets: what everybody gets has a path that its content decides, and the worker keeps nothing else.
func TestAssets(t *testing.T) {
	s, err := New(api.NewClient(config.Paths{Run: t.TempDir()}), nil, "/root")
	require.NoError(t, err)
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.Assets().ServeHTTP(w, httptest.NewRequest(http.MethodGet, strings.TrimPrefix(path, "/root"), nil))
		return w
	}
	for name := range s.assets {
		w := get(s.assetPath(name))
		assert.Equal(t, http.StatusOK, w.Code, name)
		assert.NotEmpty(t, w.Header().Get("Content-Type"), name)
		assert.Equal(t, name == workerName, w.Header().Get("Cache-Control") == "", name)
	}
	for _, path := range []string{"/assets/", "/assets/000000000000/style.css", "/assets//style.css", "/assets/" + s.assets[workerName].hash + "/worker.js", "/assets/x/../style.css"} {
		assert.Equal(t, http.StatusNotFound, get(path).Code, path)
	}

	var manifest struct {
		Start string `json:"start_url"`
		Scope string
		Icons []struct{ Src string }
	}
	require.NoError(t, json.Unmarshal(get(s.assetPath("manifest.webmanifest")).Body.Bytes(), &manifest))
	assert.Equal(t, "/root/", manifest.Start)
	assert.Equal(t, "/root/", manifest.Scope)
	require.Len(t, manifest.Icons, 2)
	for _, icon := range manifest.Icons {
		assert.Equal(t, "image/png", http.DetectContentType(get(icon.Src).Body.Bytes()))
	}

	worker := get("/root/assets/worker.js")
	assert.Equal(t, "/root/", worker.Header().Get("Service-Worker-Allowed"))
	var kept struct{ Assets []string }
	line, _, _ := strings.Cut(strings.TrimPrefix(worker.Body.String(), "const kept = "), ";\n")
	require.NoError(t, json.Unmarshal([]byte(line), &kept))
	assert.Contains(t, kept.Assets, s.assetPath("offline.html"))
	for _, path := range kept.Assets {
		assert.Equal(t, http.StatusOK, get(path).Code, path)
	}
}
