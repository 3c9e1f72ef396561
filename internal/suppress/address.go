package suppress

import (
	"bytes"
	"slices"

	bolt "go.etcd.io/bbolt"

	"posthaste/internal/proto"
	"posthaste/internal/suppress/suppressclient"
)

// everywhere are the entries of an address in all lists, those of all lists first, whether or not their time is over; of a
// tenant, in those of its own alone: how many lists others have made costs it nothing, and hides none of its entries.
func (s *store) everywhere(tenant, address string) (found []proto.Suppression, err error) {
	prefix := ""
	if tenant != "" {
		prefix = suppressclient.Scope(tenant, "")
	}
	err = s.db.View(func(tx *bolt.Tx) error {
		lists := append(listsIn(tx.Bucket(bucketEntries), prefix), listsIn(tx.Bucket(bucketImport), prefix)...)
		slices.Sort(lists)
		for _, list := range slices.Compact(lists) {
			e, there, err := get(tx, key(list, address), s.now())
			if err != nil {
				return err
			}
			if there && len(found) < proto.MaxSuppressions {
				found = append(found, e)
			}
		}
		return nil
	})
	return found, err
}

// listsIn are the lists that have entries in a bucket, and names that begin with prefix. It costs a look for each list, and not one for each entry.
func listsIn(b *bolt.Bucket, prefix string) (lists []string) {
	c := b.Cursor()
	for k, _ := c.Seek([]byte(prefix)); k != nil && bytes.HasPrefix(k, []byte(prefix)); {
		list, _, _ := bytes.Cut(k, []byte{0})
		lists = append(lists, string(list))
		k, _ = c.Seek(append(bytes.Clone(list), 1)) // no name of a list has a control character
	}
	return lists
}
