// Package objects has the driver of the object store: a bucket on an S3 server. Package
// tools/objects has the tools, and says what a store does.
package objects

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/egress"
	door "github.com/scopefs/scopefs/tools/objects"
)

// The bounds of a request and its response.
const (
	defaultTime = 30 * time.Second
	maxAnswer   = 8 << 20 // bytes of a body: a page of 1000 names has less
	maxHeaders  = 64 << 10
)

// Options say where a bucket is, and how to reach it.
type Options struct {
	door.Options
	driver.Reach
}

// A Store is a bucket on an S3 server. Its methods may be called by several goroutines.
type Store struct {
	Options
	transport *http.Transport
}

// Open returns the store. The server need not run yet.
func Open(o Options) (*Store, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	transport := egress.NewTransport(o.Dial, egress.ClientLimits{Header: maxHeaders})
	transport.DisableCompression = true
	return &Store{o, transport}, nil
}

// Close closes the idle connections.
func (s *Store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// Ping returns an error if the bucket cannot be reached. It is for the operator.
func (s *Store) Ping(ctx context.Context) error {
	err := s.do(ctx, func(ctx context.Context, c *minio.Core) error {
		found, err := c.BucketExists(ctx, s.Bucket)
		if err == nil && !found {
			err = minio.ErrorResponse{Code: minio.NoSuchBucket, StatusCode: http.StatusNotFound}
		}
		return err
	})
	return tools.Cause(err)
}

// Get returns an object.
func (s *Store) Get(ctx context.Context, name string) (out door.Content, err error) {
	err = s.do(ctx, func(ctx context.Context, c *minio.Core) error {
		body, found, _, err := c.GetObject(ctx, s.Bucket, name, minio.GetObjectOptions{})
		if err != nil {
			return err
		}
		defer body.Close()
		out.Object = object(found)
		if out.Content, err = io.ReadAll(io.LimitReader(body, door.MaxObject+1)); err == nil && len(out.Content) > door.MaxObject {
			return tools.Errorf(tools.TooLarge, "the object has more than %d bytes", door.MaxObject).
				Suggest("ask for it in smaller objects")
		}
		return err
	})
	return out, err
}

func object(o minio.ObjectInfo) door.Object {
	return door.Object{Name: o.Key, Bytes: o.Size, ETag: o.ETag, Modified: o.LastModified}
}

// Put replaces an object and returns its ETag.
func (s *Store) Put(ctx context.Context, p door.Put) (etag string, err error) {
	options := minio.PutObjectOptions{DisableContentSha256: true} // no signature in chunks
	if p.IfMatch != "" {
		options.SetMatchETag(p.IfMatch)
	} else if p.IfAbsent {
		options.SetMatchETagExcept("*")
	}
	err = s.do(ctx, func(ctx context.Context, c *minio.Core) error {
		// The hash of the whole body is signed. The client would sign chunks; versitygw takes
		// the chunk of an empty body for the next request on the connection.
		sum := sha256.Sum256(p.Content)
		info, err := c.PutObject(ctx, s.Bucket, p.Name, bytes.NewReader(p.Content), int64(len(p.Content)), "",
			hex.EncodeToString(sum[:]), options)
		etag = info.ETag
		return err
	})
	return etag, err
}

// Delete removes an object.
func (s *Store) Delete(ctx context.Context, d door.Delete) error {
	return s.do(context.WithValue(ctx, ifMatchKey{}, d.IfMatch), func(ctx context.Context, c *minio.Core) error {
		err := c.RemoveObject(ctx, s.Bucket, d.Name, minio.RemoveObjectOptions{})
		if d.IfMatch == "" && minio.ToErrorResponse(err).Code == minio.NoSuchKey {
			return nil
		}
		return err
	})
}

// List returns the next objects. A name that does not begin with the prefix is an error.
func (s *Store) List(ctx context.Context, l door.Listing) (out door.Page, err error) {
	err = s.do(ctx, func(ctx context.Context, c *minio.Core) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the listing
		options := minio.ListObjectsOptions{Prefix: l.Prefix, StartAfter: l.After, Recursive: true, MaxKeys: min(l.Limit, door.MaxPage)}
		for o := range c.ListObjectsIter(ctx, s.Bucket, options) {
			if o.Err != nil {
				return o.Err
			}
			if !strings.HasPrefix(o.Key, l.Prefix) || o.Key <= l.After {
				cause := fmt.Errorf("the server listed a name that was not asked for: %.100q", o.Key)
				return door.Unavailable(cause, "the operator must check the server")
			}
			if out.Objects = append(out.Objects, object(o)); len(out.Objects) >= l.Limit {
				out.More = true
				return nil
			}
		}
		return ctx.Err()
	})
	return out, err
}

// do calls f with a client that has the current credential. f must end with its
// context. The error is a *[tools.Error].
func (s *Store) do(ctx context.Context, f func(context.Context, *minio.Core) error) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.Timeout, defaultTime))
	defer cancel()
	secret, err := s.Secret(ctx)
	if err != nil {
		return door.Unavailable(fmt.Errorf("secret_key: %w", err), "the operator must check the store's credential")
	}
	c, err := minio.NewCore(s.URL.Host, &minio.Options{
		Creds: credentials.NewStaticV4(s.AccessKey, secret.Reveal(), ""), Secure: s.URL.Scheme == "https",
		Transport: bounded{s.transport, s.URL.Hostname(), s.Bucket}, Region: cmp.Or(s.Region, "us-east-1"),
		MaxRetries: 1, // a change that was sent is never sent again
	})
	if err == nil {
		c.SetS3EnableDualstack(false) // which has another host
		err = f(ctx, c)
	}
	return failed(ctx, err)
}

// ifMatchKey is the key of a context whose value is the condition of a DELETE. The
// client has no option for it. The signature need not cover the header.
type ifMatchKey struct{}

// bounded sends requests to one host, or to the bucket's below it, bounds the body of each
// response, and checks that a listing is one.
type bounded struct {
	*http.Transport
	host, bucket string
}

// RoundTrip sends a request.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	// The client has a list of hosts for the regions of Amazon.
	if to := r.URL.Hostname(); to != b.host && to != b.bucket+"."+b.host {
		return nil, fmt.Errorf("the host of the bucket's region is %s: correct url or region", to)
	}
	if tag, _ := r.Context().Value(ifMatchKey{}).(string); tag != "" && r.Method == http.MethodDelete {
		r = r.Clone(r.Context()) // a RoundTripper does not change its request
		r.Header.Set("If-Match", `"`+tag+`"`)
	}
	res, err := b.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	text := io.LimitReader(res.Body, maxAnswer)
	if r.URL.Query().Has("list-type") && res.StatusCode == http.StatusOK {
		page, err := io.ReadAll(text)
		if err == nil {
			err = checkListing(page)
		}
		if err != nil {
			res.Body.Close()
			return nil, err
		}
		text = bytes.NewReader(page)
	}
	res.Body = body{text, res.Body}
	return res, nil
}

// checkListing reports what a listing may not be. The client takes any XML for an empty
// page, and an entry takes a hundred times the memory of its shortest text.
func checkListing(page []byte) error {
	switch {
	case !bytes.Contains(page[:min(len(page), 512)], []byte("<ListBucketResult")):
		return errors.New("the answer is no listing")
	case bytes.Count(page, []byte("<")) > maxTags:
		return errors.New("the listing has more entries than were asked for")
	}
	return nil
}

// maxTags bounds the tags of a listing. Servers write 16 to 24 for an object.
const maxTags = 32 * door.MaxPage

type body struct {
	io.Reader
	io.Closer
}

// failed returns the error of a call as agents see it. Of a server's error the cause,
// which goes to the log, has the status and the code.
func failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*tools.Error](err); ok {
		return e
	}
	answer, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok {
		return door.Unavailable(cause(ctx, err), "try again; after a change read the object first: the change may have been made")
	}
	why := fmt.Errorf("status %d, code %.64q", answer.StatusCode, answer.Code)
	switch {
	case answer.Code == minio.NoSuchKey:
		return tools.Errorf(tools.NotFound, "there is no such object").Because(why)
	case answer.StatusCode == http.StatusPreconditionFailed || answer.Code == minio.PreconditionFailed:
		return tools.Errorf(tools.Conflict, "the object is not as if_match or if_absent says").
			Suggest("get the object again").Because(why)
	case answer.StatusCode == http.StatusConflict:
		return tools.Errorf(tools.Conflict, "another object or change is in the way").
			Suggest("on some servers an object a excludes an object a/b; else try again").Because(why)
	case answer.StatusCode == http.StatusInsufficientStorage || strings.Contains(answer.Code, "Quota") ||
		strings.Contains(answer.Code, "StorageFull"):
		return door.Unavailable(why, "the store is full: delete objects, or ask the operator")
	case answer.StatusCode == http.StatusForbidden:
		return door.Unavailable(why, "the operator must check the store's keys and rights")
	case answer.Code == minio.NoSuchBucket:
		return door.Unavailable(why, "the operator must make the bucket")
	}
	return door.Unavailable(why, "try again later; the operator's log has the reason")
}

// cause describes an error of a connection for the log, without the request's URL.
func cause(ctx context.Context, err error) error {
	var timeout net.Error
	if ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout() {
		return errors.New("the server does not answer in time")
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	return errors.New(tools.Clip(tools.Clean(err.Error()), 300))
}
