package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/agentmesh/agentmesh/signing"
)

// The key files of the node as a MoltSpeak agent. They are separate from the keys of AgentMesh (MS-22).
const (
	FileMoltSpeakKey = "moltspeak.key"
	FileMoltSpeakBox = "moltspeak-box.key"
)

// MoltSpeakKeys reads the signing key and the box key of the MoltSpeak agent, and creates the keys that do not exist.
func (d Dir) MoltSpeakKeys() (*signing.PrivateKey, *signing.BoxKey, error) {
	if _, err := os.Lstat(d.Path(FileMoltSpeakKey)); errors.Is(err, fs.ErrNotExist) {
		key, err := signing.GenerateEd25519()
		if err == nil {
			err = signing.WriteKeyFile(d.Path(FileMoltSpeakKey), key, nil)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("make the MoltSpeak key: %w", err)
		}
	}
	if _, err := os.Lstat(d.Path(FileMoltSpeakBox)); errors.Is(err, fs.ErrNotExist) {
		box, err := signing.GenerateBoxKey()
		if err == nil {
			err = signing.WriteBoxKeyFile(d.Path(FileMoltSpeakBox), box)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("make the MoltSpeak key: %w", err)
		}
	}
	key, err := signing.ReadKeyFile(d.Path(FileMoltSpeakKey), nil)
	if err != nil {
		return nil, nil, d.explainSecret(FileMoltSpeakKey, err)
	}
	box, err := signing.ReadBoxKeyFile(d.Path(FileMoltSpeakBox))
	if err != nil {
		return nil, nil, d.explainSecret(FileMoltSpeakBox, err)
	}
	return key, box, nil
}
