package objects

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/credential"
)

// TestHostileTags: an ETag that no condition may have is not shown.
func TestHostileTags(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string]string{`"e-1"`: "e-1", "": "", "*": "", "a b": "", "é": "", strings.Repeat("x", 129): ""} {
		assert.Equal(t, want, etag(tag), tag)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	secret := &credential.Source{Env: "X"}
	for name, c := range map[string]struct {
		url, bucket, prefix, key string
		secret                   *credential.Source
		want                     string
	}{
		"good":        {"https://s3.example:9000/", "store", "a/b", "k", secret, ""},
		"no address":  {"s3.example", "store", "", "k", secret, "url"},
		"file":        {"file://s3.example", "store", "", "k", secret, "url"},
		"user":        {"https://u:p@s3.example", "store", "", "k", secret, "url"},
		"path":        {"https://s3.example/store", "store", "", "k", secret, "bucket and prefix"},
		"bucket":      {"https://s3.example", "../store", "", "k", secret, "bucket"},
		"prefix":      {"https://s3.example", "store", "a/../b", "k", secret, "prefix"},
		"slash":       {"https://s3.example", "store", "/a", "k", secret, "prefix"},
		"empty parts": {"https://s3.example", "store", "a//b", "k", secret, "prefix"},
		"no secret":   {"https://s3.example", "store", "", "k", nil, "secret_key"},
		"no key":      {"https://s3.example", "store", "", "", secret, "access_key"},
		"bad secret":  {"https://s3.example", "store", "", "k", &credential.Source{}, "secret_key"},
	} {
		u, err := url.Parse(c.url)
		require.NoError(t, err)
		err = Options{URL: u, Bucket: c.bucket, Prefix: c.prefix, AccessKey: c.key, SecretKey: c.secret}.Check()
		if c.want == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, c.want, name)
		}
	}
}
