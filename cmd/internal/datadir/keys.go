package datadir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/signing"
)

// Keys are the files that all instances of an agent have in common, by their paths in the data directory: secrets,
// retired keys, keys for other protocols, and the card. A path has slashes on every system.
type Keys map[string][]byte

// keyFiles are the paths of Keys outside of the folder of retired keys. [Dir.SaveKeys] writes the card last, because a
// directory with a card has an agent.
var keyFiles = []string{FileMoltSpeakKey, FileMoltSpeakBox, FileCredential, FileAge, FileKey, FileCard}

// errKeyDiffers means that a key or credential differs from the one in the database, and neither is known to be newer.
var errKeyDiffers = errors.New("differs from the one in the database")

// Keys reads the files that exist. It refuses secrets that other users may read.
func (d Dir) Keys() (Keys, error) {
	keys := Keys{}
	retired, err := os.ReadDir(d.Path(DirRetired))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, exit.Fail(exit.Config, fmt.Errorf("read the keys: %w", err))
	}
	names := slices.Clone(keyFiles)
	for _, f := range retired {
		if strings.HasPrefix(f.Name(), FileKey) || strings.HasPrefix(f.Name(), FileAge) {
			names = append(names, path.Join(DirRetired, f.Name()))
		}
	}
	for _, name := range names {
		read := signing.ReadPrivateFile
		if name == FileCard {
			read = os.ReadFile // it is public
		}
		data, err := read(d.Path(name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, d.explainSecret(name, err)
		}
		if err == nil {
			keys[name] = data
		}
	}
	return keys, nil
}

// HasAgent reports whether the keys belong to an agent, which then has a card.
func (k Keys) HasAgent() bool { return k[FileCard] != nil }

func (k Keys) parse(name string, passphrase func() ([]byte, error)) (*signing.PrivateKey, error) {
	if k[name] == nil {
		return nil, fs.ErrNotExist
	}
	return signing.ParseKeyFile(k[name], passphrase)
}

// SaveKeys writes the files that differ from those in the directory, and returns their paths. The caller must not
// replace a signing key or age key unless keys has the old one among its retired keys, as after [Dir.Merge] and
// [Keys.Rotate]. SaveKeys replaces the card only together with the signing key, because the card in the directory may
// be newer.
func (d Dir) SaveKeys(keys Keys) (changed []string, err error) {
	local, err := d.Keys()
	if err != nil {
		return nil, err
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(keys)), func(name string) bool { return !isRetired(name) })
	for _, name := range append(names, keyFiles...) {
		old, exists := local[name]
		if keys[name] == nil || bytes.Equal(old, keys[name]) || exists && name == FileCard && !slices.Contains(changed, FileKey) {
			continue
		}
		if isRetired(name) {
			if err := os.MkdirAll(d.Path(DirRetired), 0o700); err != nil {
				return changed, exit.Fail(exit.Config, fmt.Errorf("write the keys: %w", err))
			}
		}
		if err := atomicfile.Write(d.Path(name), keys[name]); err != nil {
			return changed, ExplainDiskFull(fmt.Errorf("write the keys: %w", err))
		}
		changed = append(changed, name)
	}
	return changed, nil
}

// isRetired reports whether a path is that of a retired key. The path may come from another instance, and must not lead
// out of the folder on any system.
func isRetired(name string) bool {
	folder, file := path.Split(name)
	return folder == DirRetired+"/" && !strings.ContainsAny(file, `\:`) &&
		(strings.HasPrefix(file, FileKey) || strings.HasPrefix(file, FileAge))
}

// hasRetiredFile reports whether the retired keys have a file with this content.
func (k Keys) hasRetiredFile(content []byte) bool {
	for name, data := range k {
		if isRetired(name) && bytes.Equal(data, content) {
			return true
		}
	}
	return false
}

// Merge returns the keys in shared and those that only the data directory has. If both have a signing key or age key,
// Merge takes the newer one: the side with the newer key has the other key among its retired keys. If neither is newer,
// or if the credentials differ, Merge returns an error, because one of the two would be lost.
func (d Dir) Merge(local, shared Keys) (Keys, error) {
	merged := maps.Clone(shared)
	for _, name := range slices.Sorted(maps.Keys(local)) {
		mine := local[name]
		theirs, exists := shared[name]
		switch {
		case !exists:
			merged[name] = mine
		case bytes.Equal(mine, theirs), isRetired(name), name == FileCard, shared.hasRetiredFile(mine):
		case local.hasRetiredFile(theirs):
			merged[name] = mine
			if name == FileKey && local[FileCard] != nil {
				merged[FileCard] = local[FileCard]
			}
		default:
			return nil, exit.FailHint(exit.Config, fmt.Errorf("%s %w", d.Path(name), errKeyDiffers),
				"if the one in the database is right, move the file away; agentmesh then takes the one in the database")
		}
	}
	return merged, nil
}

// AddNew adds new secrets of an agent. Secrets that exist stay. If passphrase is not empty, it encrypts the new keys.
func (k Keys) AddNew(passphrase []byte) error {
	key, err := signing.GenerateEd25519()
	if err != nil {
		return fmt.Errorf("make the signing key: %w", err)
	}
	age, err := GenerateKey(string(signing.KindAge))
	if err != nil {
		return fmt.Errorf("make the age key: %w", err)
	}
	for name, key := range map[string]*signing.PrivateKey{FileKey: key, FileAge: age} {
		if k[name] != nil {
			continue
		}
		if k[name], err = key.MarshalKeyFile(passphrase); err != nil {
			return err
		}
	}
	k.AddCredential()
	return nil
}

// AddCredential adds a new credential if k has no credential, for example because it was lost (AM-83), and reports
// whether it did. Unlike the keys, the credential is not part of the identity of the agent.
func (k Keys) AddCredential() (added bool) {
	if k[FileCredential] != nil {
		return false
	}
	k[FileCredential] = []byte(string(client.NewCredential()) + "\n")
	return true
}

// Rotate replaces the card and the signing key, which it encrypts if passphrase is not empty. It keeps the file of the
// old key as it is, encrypted or not, among the retired keys: until every directory has the new card, only the old key
// can vouch for the new one (AM-60).
func (k Keys) Rotate(key, old *signing.PrivateKey, passphrase, card []byte) error {
	data, err := key.MarshalKeyFile(passphrase)
	if err != nil {
		return fmt.Errorf("write the new signing key: %w", err)
	}
	_, digits, _ := strings.Cut(old.Public().Fingerprint(), ":")
	k[path.Join(DirRetired, retiredName(digits))] = k[FileKey]
	k[FileKey], k[FileCard] = data, card
	return nil
}
