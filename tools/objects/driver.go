package objects

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/tools"
)

// A Store is a bucket. Its methods may be called by several goroutines, and each returns within
// the store's time limit. Errors are a *[tools.Error].
type Store interface {
	// Get returns an object, of at most [MaxObject] bytes.
	Get(ctx context.Context, name string) (Content, error)

	// Put replaces an object and returns its ETag.
	Put(ctx context.Context, p Put) (etag string, err error)

	// Delete removes an object.
	Delete(ctx context.Context, d Delete) error

	// List returns the next objects, by name.
	List(ctx context.Context, l Listing) (Page, error)
}

// An Object describes an object as the server returns it.
type Object struct {
	Name     string
	Bytes    int64
	ETag     string
	Modified time.Time
}

// Content is an object with what it holds.
type Content struct {
	Object
	Content []byte
}

// A Put is the new content of an object.
type Put struct {
	Name     string
	Content  []byte
	IfMatch  string // the ETag that the object must have; "": any
	IfAbsent bool   // the object must not exist
}

// A Delete names an object to be removed.
type Delete struct {
	Name    string
	IfMatch string // the ETag that it must have; "": any
}

// A Listing selects objects whose names begin with Prefix and come after After.
type Listing struct {
	Prefix, After string
	Limit         int
}

// A Page is a part of a listing.
type Page struct {
	Objects []Object
	More    bool // there may be more
}

// Options locate a bucket and list the agents that may use it.
type Options struct {
	URL       *url.URL // https://HOST or http://HOST; the driver sends no secret to it, only signatures
	Bucket    string
	Prefix    string // of all names; "": none
	Region    string // "": us-east-1
	AccessKey string
	SecretKey *credential.Source
	Addresses []netip.Prefix // that are allowed though they are not public
	Timeout   time.Duration  // of a call; 0 is 30 s
}

// Check reports what is wrong with the options, as "key: what: remedy".
func (o Options) Check() error {
	switch {
	case o.URL == nil || o.URL.Hostname() == "" || o.URL.Scheme != "https" && o.URL.Scheme != "http":
		return errors.New("url: is no address: write https://HOST")
	case o.URL.User != nil || strings.Trim(o.URL.Path, "/") != "" || o.URL.RawQuery != "" || o.URL.Fragment != "":
		return errors.New("url: has more than a host: write https://HOST, and bucket and prefix")
	case !isBucket(o.Bucket):
		return fmt.Errorf("bucket: %q is no name of a bucket: correct it", o.Bucket)
	case o.Prefix != "" && (len(o.Prefix) > 256 || !filepath.IsLocal(o.Prefix) || path.Clean(o.Prefix) != o.Prefix ||
		strings.ContainsAny(o.Prefix, "%\\")):
		return fmt.Errorf("prefix: %q is no relative path: correct it", o.Prefix)
	case o.AccessKey == "" || o.SecretKey == nil:
		return errors.New("access_key, secret_key: the server asks for both: write them")
	}
	if err := o.SecretKey.Check(); err != nil {
		return fmt.Errorf("secret_key: %w", err)
	}
	return nil
}

// isBucket reports whether a text is the name of a bucket.
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
func isBucket(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	odd := func(r rune) bool { return !strings.ContainsRune(letters+".-", r) }
	if len(name) < 3 || len(name) > 63 || strings.ContainsFunc(name, odd) {
		return false
	}
	if strings.Trim(name[:1]+name[len(name)-1:], letters) != "" {
		return false
	}
	_, err := netip.ParseAddr(name)
	return err != nil && !strings.Contains(name, "..") && !strings.Contains(name, ".-") && !strings.Contains(name, "-.")
}

// Unavailable is the error of a store that does not work. The agent does not see the cause.
func Unavailable(cause error, hint string) *tools.Error {
	return tools.Errorf(tools.Unavailable, "the store does not work").Suggest(hint).Because(cause)
}
