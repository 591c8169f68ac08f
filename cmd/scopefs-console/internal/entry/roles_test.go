package entry

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/pages"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/devices"
)

// TestRoles: the door refuses each route of the site to a device whose role does not cover it, and lets others at it.
func TestRoles(t *testing.T) {
	d := newDoor(t)
	all, err := pages.New(api.NewClient(config.Paths{Run: t.TempDir()}), d.store, d.Root)
	require.NoError(t, err)
	h := d.Handler(all.Routes(), all.Assets(), all.Own)
	refused := 0
	for _, role := range devices.Roles {
		with := newPhone(t, d).pair("the-"+string(role), role)
		for _, route := range all.Routes() {
			method, path, _ := strings.Cut(route.Pattern, " ")
			if path == "/live" { // whose answer has no end
				continue
			}
			path = strings.NewReplacer("{$}", "", "{id}", "1", "{agent}", "bob", "{seq}", "1").Replace(path)
			r := httptest.NewRequest(method, d.Root+path, nil)
			r.Host = strings.TrimPrefix(site, "http://")
			r.Header.Set("Origin", site)
			with(r)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			assert.NotContains(t, w.Body.String(), "You are not logged in", route.Pattern)
			is := strings.Contains(w.Body.String(), "this needs <strong>"+string(route.Role)+"</strong>")
			assert.Equal(t, !role.Covers(route.Role), is, "%s %s: %d %s", role, route.Pattern, w.Code, w.Body)
			if is {
				refused++
				assert.Equal(t, http.StatusForbidden, w.Code)
			}
		}
	}
	assert.GreaterOrEqual(t, refused, 8)
}
