package pages

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/devices"
)

//go:embed assets/*
var assetFiles embed.FS

// asset is a file that everybody gets: it has nothing of the daemon.
type asset struct {
	text []byte
	hash string
}

// kinds are the types of assets.
var kinds = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png",
	".html": "text/html; charset=utf-8", ".webmanifest": "application/manifest+json",
}

// workerName is the service worker's. Browsers look for a new one at its path, which must stay.
const workerName = "worker.js"

func (s *Site) addAsset(name string, text []byte) {
	sum := sha256.Sum256(text)
	s.assets[name] = asset{text, hex.EncodeToString(sum[:6])}
}

func (s *Site) assetPath(name string) string {
	if name == workerName {
		return s.root + "/assets/" + name
	}
	return s.root + "/assets/" + s.assets[name].hash + "/" + name
}

// readAssets adds the files.
func (s *Site) readAssets() error {
	names, err := fs.Glob(assetFiles, "assets/*")
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := assetFiles.ReadFile(name)
		if err != nil {
			return err
		}
		s.addAsset(path.Base(name), text)
	}
	return nil
}

// makeAssets adds what an installed console has: its manifest, the page that it shows without a connection, and the worker,
// which gets the paths of what it keeps. They have the path of the pages, which stays while a device is paired.
func (s *Site) makeAssets() error {
	var offline bytes.Buffer
	if err := s.templates[devices.Look]["offline"].ExecuteTemplate(&offline, "door", page{Name: "offline"}); err != nil {
		return err
	}
	s.addAsset("offline.html", offline.Bytes())
	icon := func(size int) map[string]string {
		return map[string]string{"src": s.assetPath(fmt.Sprintf("icon-%d.png", size)),
			"sizes": fmt.Sprintf("%dx%d", size, size), "type": "image/png", "purpose": "any maskable"}
	}
	manifest, err := json.Marshal(map[string]any{
		"name": "scopefs console", "short_name": "scopefs", "id": s.root + "/", "start_url": s.root + "/", "scope": s.root + "/",
		"display": "standalone", "background_color": "#14171c", "theme_color": "#14171c", "icons": []any{icon(192), icon(512)},
	})
	if err != nil {
		return err
	}
	s.addAsset("manifest.webmanifest", manifest)
	var kept []string
	for _, name := range slices.Sorted(maps.Keys(s.assets)) {
		if kind := path.Ext(name); kind != ".js" && kind != ".webmanifest" {
			kept = append(kept, s.assetPath(name))
		}
	}
	what, err := json.Marshal(map[string]any{"offline": s.assetPath("offline.html"), "inbox": s.root + "/inbox",
		"icon": s.assetPath("icon-192.png"), "assets": kept})
	if err != nil {
		return err
	}
	s.addAsset(workerName, fmt.Appendf(nil, "const kept = %s;\n%s", what, s.assets[workerName].text))
	return nil
}

// Assets serves them: /assets/HASH/NAME, which browsers keep, and the worker.
func (s *Site) Assets() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hash, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/assets/"), "/")
		if hash == workerName && name == "" {
			w.Header().Set("Service-Worker-Allowed", s.root+"/")
			w.Header().Set("Content-Type", kinds[".js"])
			_, _ = w.Write(s.assets[workerName].text)
			return
		}
		file, ok := s.assets[name]
		if !ok || file.hash != hash || name == workerName {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", kinds[path.Ext(name)])
		w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
		_, _ = w.Write(file.text)
	})
}
