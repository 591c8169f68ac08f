package console

import (
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestFirstPage: the first page says what happened: the sessions that have ended, the last one first, with their denials, what each
// changed by its names, and a link that leads to its changes, where they can be undone. The text of an agent is text.
func TestFirstPage(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t, map[string]string{"bob": "view: {changes: kept, paths: {secret: read}}", "eve": ""})
	harness.Plant(t, h.Scope("bob"), "gone", "changed=1", "secret=1")
	_, _, code := h.Try("run", "-q", "bob", "--", "sh", "-c", "rm gone; echo 2 >>changed; echo x >'<b>new'; echo x >secret")
	assert.NotZero(t, code)
	h.Must("run", "-q", "eve", "--", "true")
	s := serve(t, h)
	cookie := enter(t, s.link)
	get := func(path string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.root()+path, nil)
		require.NoError(t, err)
		r.AddCookie(cookie)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s: %s", path, text)
		return string(text)
	}
	page := get("/")
	section := regexp.MustCompile(`(?s)<h2 id="past">What happened</h2>.*?</section>`).FindString(page)
	rows := regexp.MustCompile(`(?s)<tr><th scope="row">.*?</tr>`).FindAllString(section, -1)
	require.Len(t, rows, 2, page)
	assert.Contains(t, rows[0], "<td>eve</td>", "the last one first")
	assert.Contains(t, rows[0], `<td class="n">0</td>`)
	bob := rows[1]
	assert.Contains(t, bob, "<td>bob</td>")
	assert.Contains(t, bob, `<td class="n bad">1</td>`, "its denial")
	assert.Contains(t, bob, "1 removed, 1 changed, 1 created: gone, changed, &lt;b&gt;new")
	assert.NotContains(t, bob, "<b>new")
	link := regexp.MustCompile(`href="[^"]*?(/changes/bob\?by=session&amp;name=[^"]+)">list, undo<`).FindStringSubmatch(bob)
	require.NotNil(t, link, bob)
	changes := get(regexp.MustCompile("&amp;").ReplaceAllString(link[1], "&"))
	for _, want := range []string{"gone", "changed", "&lt;b&gt;new", "ndo"} {
		assert.Contains(t, changes, want)
	}
	assert.Contains(t, get("/denials"), "secret")
}
