package pages

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/devices"
)

// TestRoutes: whatever is no GET needs more than the role look, and each page names a role.
func TestRoutes(t *testing.T) {
	s, err := New(api.NewClient(config.Paths{Run: t.TempDir()}), nil, "/root")
	require.NoError(t, err)
	posts := 0
	for _, route := range s.Routes() {
		method, path, _ := strings.Cut(route.Pattern, " ")
		assert.Contains(t, devices.Roles, route.Role, route.Pattern)
		switch {
		case method == http.MethodGet:
		case path == "/push", path == "/devices/own": // a device's own
			assert.Equal(t, devices.Look, route.Role, route.Pattern)
		case strings.HasPrefix(path, "/inbox"):
			posts++
			assert.Equal(t, devices.Decide, route.Role, route.Pattern)
		default:
			posts++
			assert.Equal(t, devices.All, route.Role, route.Pattern)
		}
	}
	assert.GreaterOrEqual(t, posts, 5)
}
