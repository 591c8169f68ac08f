package config

import (
	"net/netip"
	"net/url"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
)

// ObjectStore is the store of object_get and the others: a bucket on an S3 server.
type ObjectStore struct {
	URL       *url.URL
	Bucket    string
	Prefix    string // of all names; "": none
	Region    string // "": us-east-1
	AccessKey string
	SecretKey *credential.Source
	Addresses []netip.Prefix
	Timeout   time.Duration // of a call; 0: the default
}

func (s *ObjectStore) fields() map[string]fields.Field {
	return map[string]fields.Field{
		"url":        storeURLField(&s.URL),
		"bucket":     fields.Text(&s.Bucket),
		"prefix":     fields.Text(&s.Prefix),
		"region":     fields.Text(&s.Region),
		"access_key": fields.Text(&s.AccessKey),
		"secret_key": fields.Credential(&s.SecretKey),
		"addresses":  prefixesField(&s.Addresses),
		"timeout":    fields.Duration(&s.Timeout),
	}
}
