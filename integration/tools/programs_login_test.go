package tools

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestClientsLogin: Claude Code and Codex work with the login of a subscription, by their descriptions and presets, which differ
// here in addresses alone. Their access token has ended: it is refreshed outside, and neither token is in the sandbox.
func TestClientsLogin(t *testing.T) {
	need.Once(t)
	needClients(t)
	claims := func(text string) string {
		e := base64.RawURLEncoding.EncodeToString
		return e([]byte(`{"alg":"RS256"}`)) + "." + e([]byte(text)) + "." + e([]byte("sesame"))
	}
	account := `{"email":"me@example.test","https://api.openai.com/auth":{"chatgpt_plan_type":"plus","chatgpt_account_id":"acc-1","chatgpt_user_id":"u-1"}}`
	newToken := claims(fmt.Sprintf(`{"exp": %d}`, time.Now().Add(time.Hour).Unix()))
	for name, c := range map[string]struct {
		preset, file, text, path, want string
	}{
		"claude": {"anthropic", ".claude/.credentials.json",
			`{"claudeAiOauth": {"accessToken": "sk-ant-oat01-sesame-1", "refreshToken": "sk-ant-ort01-sesame-1", "expiresAt": 1700000000000, "scopes": ["user:inference", "user:profile"], "subscriptionType": "max"},
			  "mcpOAuth": {"x": {"accessToken": "sesame-of-a-server"}}}`, "/v1/messages", "max"},
		"codex": {"openai", ".codex/auth.json",
			fmt.Sprintf(`{"auth_mode": "chatgpt", "OPENAI_API_KEY": null, "tokens": {"id_token": %q, "access_token": %q, "refresh_token": "sesame-refresh-1", "account_id": "acc-1"}, "last_refresh": "2026-01-01T00:00:00Z"}`,
				claims(account), claims(`{"exp": 1700000000}`)), "/backend-api/codex/responses", "acc-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := programCases()[name]
			program.api.lax, program.api.path = true, c.path
			var found string
			model, handler := newModel(t, program.api,
				func(string) turn {
					return program.bash("cat ~/" + c.file + "; grep -rslE '[s]esame' /proc/[0-9]*/environ /etc /run /tmp /home ~ /workspace 2>/dev/null; echo searched")
				},
				func(last string) turn { found = last; return turn{answer: "all is done"} })
			serve := func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Header.Get("Upgrade") != "":
					w.WriteHeader(http.StatusUpgradeRequired) // Codex then uses requests
				case r.URL.Path == "/backend-api/wham/accounts/check":
					fmt.Fprint(w, `{"accounts": [{"id": "acc-1", "workspace_backend_origin": "https://chatgpt.com", "account_routing_override": "NO_CONSTRAINT"}], "account_ordering": ["acc-1"]}`)
				default:
					if r.Header.Get("Content-Encoding") == "zstd" { // as Codex does with a login alone
						if z, err := zstd.NewReader(r.Body); assert.NoError(t, err) {
							r.Body = z.IOReadCloser()
						}
					}
					handler.ServeHTTP(w, r)
				}
			}
			at, ca := secureServer(t, serve, "api.anthropic.com", "platform.claude.com", "api.openai.com", "chatgpt.com")
			asked := make(chan string, 10)
			issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				asked <- string(body)
				fmt.Fprintf(w, `{"access_token": %q, "refresh_token": "sesame-refresh-2", "id_token": %q, "expires_in": 3600}`, newToken, claims(account))
			}))
			t.Cleanup(issuer.Close)
			h := harness.LayOut(t, nil)
			place := fmt.Sprintf("  - host: $1\n    address: '%s'\n    ca: %q", at, ca)
			preset := harness.ReadAll(t, "../../scope/hosts/presets/"+c.preset+".yaml")
			h.Put("presets.d/"+c.preset+".yaml", regexp.MustCompile(`(?m)^  - host: (\S+).*$`).ReplaceAllString(preset, place))
			described := harness.ReadAll(t, "../../internal/programs/programs/"+name+".yaml")
			h.Put("programs.d/"+name+".yaml", regexp.MustCompile(`(?m)^  url: .*$`).ReplaceAllString(described, "  url: "+issuer.URL))
			h.Define("a", "network: {presets: ["+c.preset+"]}")
			h.Put("agents/a/notes.txt", "one\n")
			h.Start()
			home := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(home, filepath.Dir(c.file)), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(home, c.file), []byte(c.text), 0o600))
			out, _ := program.run(t, h, name, "HOME="+home, "ANTHROPIC_API_KEY=", "OPENAI_API_KEY=")
			assert.Contains(t, out, "all is done")
			assert.Contains(t, found, "scopefs-secret-")
			assert.Contains(t, found, c.want)
			assert.Contains(t, found, "searched")
			assert.NotContains(t, found, "sesame")
			delete(model.keys, "") // of requests without a credential
			assert.Equal(t, map[string]bool{"Bearer " + newToken: true}, model.keys)
			require.NotEmpty(t, asked)
			assert.Contains(t, <-asked, `"grant_type":"refresh_token"`)
			assert.Empty(t, asked)
			assert.Contains(t, harness.ReadAll(t, filepath.Join(home, c.file)), "sesame-refresh-2")
			assert.NotContains(t, h.Must("audit", "--json"), "sesame")
		})
	}
}
