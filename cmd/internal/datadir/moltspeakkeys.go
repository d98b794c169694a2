package datadir

import (
	"fmt"

	"github.com/agentmesh/agentmesh/signing"
)

// The key files of the node as a MoltSpeak agent. They are separate from the keys of AgentMesh (MS-22).
const (
	FileMoltSpeakKey = "moltspeak.key"
	FileMoltSpeakBox = "moltspeak-box.key"
)

// MoltSpeakKeys reads the signing key and the box key of the MoltSpeak agent.
func (d Dir) MoltSpeakKeys() (*signing.PrivateKey, *signing.BoxKey, error) {
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

// AddMoltSpeak adds new keys of the node as a MoltSpeak agent. Keys that exist stay.
func (k Keys) AddMoltSpeak() error {
	key, err := signing.GenerateEd25519()
	if err != nil {
		return fmt.Errorf("make the MoltSpeak key: %w", err)
	}
	box, err := signing.GenerateBoxKey()
	if err != nil {
		return fmt.Errorf("make the MoltSpeak key: %w", err)
	}
	for name, key := range map[string]interface{ MarshalText() ([]byte, error) }{FileMoltSpeakKey: key, FileMoltSpeakBox: box} {
		if k[name] != nil {
			continue
		}
		if k[name], err = key.MarshalText(); err != nil {
			return fmt.Errorf("make the MoltSpeak key: %w", err)
		}
	}
	return nil
}
