package stores

import (
	"fmt"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/tools/objects"
)

// objects adds the object store.
func (s *Stores) objects(config *config.ObjectStore) error {
	if config == nil {
		return nil
	}
	bucket, err := objects.Open(objects.Options{
		URL: config.URL, Bucket: config.Bucket, Prefix: config.Prefix, Region: config.Region, AccessKey: config.AccessKey, SecretKey: config.SecretKey,
		Addresses: config.Addresses, Timeout: config.Timeout,
	})
	if err != nil {
		return fmt.Errorf("objects: %w", err)
	}
	list, err := objects.New(bucket)
	if err != nil {
		return err
	}
	s.add(store{name: "objects", kind: "s3", tools: list, check: bucket.Ping, close: bucket.Close})
	s.tools = append(s.tools, list...)
	return nil
}
