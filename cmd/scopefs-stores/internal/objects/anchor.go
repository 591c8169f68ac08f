package objects

import (
	"bytes"
	"context"
	"crypto/md5" // S3 wants it for objects with a lock
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/scopefs/scopefs/internal/anchor"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/egress"
	door "github.com/scopefs/scopefs/tools/objects"
)

// Anchor gives a head of the log to a bucket, as an object of its own that cannot be removed for a time, and checks that the
// server says so. An object that exists stays: one with another head is an [anchor.ErrFork].
func Anchor(ctx context.Context, r anchor.Request) error {
	if r.S3 == nil {
		return errors.New("not an anchor of this program")
	}
	s, err := Open(Options{Options: door.Options(r.S3.ObjectStore), Reach: driver.Reach{
		Dial:   (&egress.Dialer{Pinned: r.S3.Addresses}).DialContext,
		Secret: func(context.Context) (credential.Secret, error) { return credential.Known(r.Secret), nil },
	}})
	if err != nil {
		return err
	}
	defer s.Close()
	name := path.Join(r.S3.Prefix, r.Origin, fmt.Sprintf("%020d", r.Size))
	err = s.putLocked(ctx, name, r)
	least := time.Now().Add(r.S3.Retain - lockSlack)
	if e, ok := errors.AsType[*tools.Error](err); ok && e.Code == tools.Conflict {
		err, least = s.compare(ctx, name, r.Head), time.Now() // its lock began when it was made
	} else {
		err = said(err)
	}
	if err != nil {
		return err
	}
	return s.checkLock(ctx, name, r.S3.Mode, least)
}

func (s *Store) putLocked(ctx context.Context, name string, r anchor.Request) error {
	until := time.Now().Add(r.S3.Retain)
	options := minio.PutObjectOptions{
		ContentType: "text/plain; charset=utf-8", DisableContentSha256: true,
		Mode: minio.RetentionMode(strings.ToUpper(string(r.S3.Mode))), RetainUntilDate: until.UTC(),
	}
	options.SetMatchETagExcept("*")
	return s.do(ctx, func(ctx context.Context, c *minio.Core) error {
		sum, md := sha256.Sum256(r.Head), md5.Sum(r.Head)
		_, err := c.PutObject(ctx, s.Bucket, name, bytes.NewReader(r.Head), int64(len(r.Head)),
			base64.StdEncoding.EncodeToString(md[:]), hex.EncodeToString(sum[:]), options)
		return err
	})
}

// compare compares an object that exists with the head: the answer to an earlier request may have been lost.
func (s *Store) compare(ctx context.Context, name string, head []byte) error {
	there, err := s.Get(ctx, name)
	if err != nil {
		return said(err)
	}
	if !bytes.Equal(there.Content, head) {
		return fmt.Errorf("%w: the object %s has another head", anchor.ErrFork, name)
	}
	return nil
}

// lockSlack is how much shorter a lock may be than what was asked for: servers cut off parts of a second.
const lockSlack = time.Minute

// checkLock reports a server that has taken the object, and not locked it.
func (s *Store) checkLock(ctx context.Context, name string, mode config.LockMode, least time.Time) error {
	err := s.do(ctx, func(ctx context.Context, c *minio.Core) error {
		found, err := c.StatObject(ctx, s.Bucket, name, minio.StatObjectOptions{})
		if err != nil {
			return err
		}
		until, err := time.Parse(time.RFC3339, found.Metadata.Get("X-Amz-Object-Lock-Retain-Until-Date"))
		if err != nil || !strings.EqualFold(found.Metadata.Get("X-Amz-Object-Lock-Mode"), string(mode)) || until.Before(least) {
			return door.Unavailable(errors.New("the object has no lock: enable object lock for the bucket, and allow s3:GetObjectRetention"), "")
		}
		return nil
	})
	return said(err)
}

// said returns the cause of a tool's error, for the operator.
func said(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("s3: %w", tools.Cause(err))
}
