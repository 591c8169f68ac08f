package pages

import (
	"fmt"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestListOf(t *testing.T) {
	var all []string
	for i := range 250 {
		all = append(all, fmt.Sprintf("agent-%03d", i))
	}
	list := func(query string) ([]string, listed) {
		part, l, err := listOf(httptest.NewRequest("GET", "/?"+query, nil), all, func(s string) string { return s })
		require.NoError(t, err)
		return part, l
	}
	part, l := list("")
	assert.Equal(t, all[:100], part)
	assert.Equal(t, listed{From: 1, To: 100, Found: 250, All: 250, Next: "find=&page=2"}, l)
	part, l = list("page=3")
	assert.Equal(t, all[200:], part)
	assert.Equal(t, listed{From: 201, To: 250, Found: 250, All: 250, Previous: "find=&page=2"}, l)
	part, l = list("find=AGENT-24")
	assert.Equal(t, all[240:], part)
	assert.Equal(t, listed{Find: "AGENT-24", From: 1, To: 10, Found: 10, All: 250}, l)
	part, _ = list("page=9")
	assert.Empty(t, part)
	for _, page := range []string{"0", "-1", "x", "99999999999999999999"} {
		_, _, err := listOf(httptest.NewRequest("GET", "/?page="+page, nil), all, func(s string) string { return s })
		assert.ErrorContains(t, err, "page")
	}
}

// TestShared: viewers of a page share one, until the daemon has answered again or somebody has changed something.
func TestShared(t *testing.T) {
	var s shared
	var made atomic.Int64
	make := func() (int, []byte) { return 200, fmt.Append(nil, made.Add(1)) }
	now := time.Now()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			_, text := s.page(now, "look /log", make)
			assert.Equal(t, "1", string(text))
		})
	}
	all.Wait()
	_, text := s.page(now, "all /log", make)
	assert.Equal(t, "2", string(text), "another role")
	_, text = s.page(now.Add(time.Second), "look /log", make)
	assert.Equal(t, "3", string(text), "a newer answer")
	s.forget()
	_, text = s.page(now.Add(time.Second), "look /log", make)
	assert.Equal(t, "4", string(text), "a form was sent")
}
