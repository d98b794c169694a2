package signing

import (
	"crypto/sha256"

	lru "github.com/hashicorp/golang-lru/v2"
)

// KeyCache caches the most recently used keys by their text. Parsing an OpenPGP key costs several times as much as a
// verification. Errors are not cached.
type KeyCache struct {
	keys *lru.Cache[[sha256.Size]byte, *PublicKey]
}

// NewKeyCache returns a cache of at most n keys. It panics if n is not positive.
func NewKeyCache(n int) *KeyCache {
	keys, err := lru.New[[sha256.Size]byte, *PublicKey](n)
	if err != nil {
		panic("signing: a key cache must hold at least one key")
	}
	return &KeyCache{keys: keys}
}

// Parse is [ParsePublicKey] with the cache.
func (c *KeyCache) Parse(text string) (*PublicKey, error) {
	if len(text) > MaxKeyText {
		return ParsePublicKey(text)
	}
	id := sha256.Sum256([]byte(text))
	if key, ok := c.keys.Get(id); ok {
		return key, nil
	}
	key, err := ParsePublicKey(text)
	if err != nil {
		return nil, err
	}
	c.keys.Add(id, key)
	return key, nil
}
