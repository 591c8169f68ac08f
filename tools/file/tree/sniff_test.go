package tree

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestMediaType compares with net/http.
func TestMediaType(t *testing.T) {
	begins := []string{"", "text", "caf\xe9", "\x00", "a\x1bb", "a\x0bb", "\x00\x00\x00\x18ftypmp42....mp41", "\x00\x00\x00\x18ftypisom....isom", "\x00\x00\x00\x10ftypmp4", " \n<?xml ", "<!--", "<!-"}
	for _, s := range signatures {
		begins = append(begins, s.begin, s.begin[:len(s.begin)-1])
	}
	for _, tag := range tags {
		begins = append(begins, "<"+tag+">", "\t<"+strings.ToLower(tag)+" ", "<"+tag, "<"+tag+"x")
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, begin := range begins {
		for range 200 {
			b := []byte(begin)
			for n := random.IntN(3) * random.IntN(300); n > 0; n-- {
				b = append(b, byte(random.IntN(256)))
			}
			if len(b) > 0 && random.IntN(2) == 0 {
				b[random.IntN(len(b))] = byte(random.IntN(256))
			}
			want, _, _ := strings.Cut(http.DetectContentType(b), ";")
			assert.Equal(t, want, mediaType(b), "%q", b)
		}
	}
}
