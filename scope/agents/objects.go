package agents

import (
	"net/netip"
	"net/url"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
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

func (s *ObjectStore) fields() map[string]field {
	return map[string]field{
		"url":        storeURLField(&s.URL),
		"bucket":     textField(&s.Bucket),
		"prefix":     textField(&s.Prefix),
		"region":     textField(&s.Region),
		"access_key": textField(&s.AccessKey),
		"secret_key": credentialField(&s.SecretKey),
		"addresses":  prefixesField(&s.Addresses),
		"timeout":    durationField(&s.Timeout),
	}
}
