// Package signing makes and checks the signatures of AgentMesh: canonical bytes of a JSON tree, the keys that
// an agent card may carry, signatures over bytes and trees, and the files that hold private keys.
//
// It works on trees ([wire.Value]), bytes and keys. It does not know what a message is, whose key it holds or
// whether a sender may write to us, and it never asks the clock: whoever calls passes now.
//
// Start with [ParsePublicKey] and [PublicKey.VerifyValue] to check what a peer sent, with [ParsePrivateKey] or
// [ReadKeyFile] and [PrivateKey.SignValue] to sign.
//
// What holds everywhere:
//
//   - The text of the key decides the algorithm, the signature never does (AM-8). A key that is refused cannot
//     become a [PublicKey], so no check can be forgotten at verification.
//   - A signature is over one writing of the tree as it was received. Of five closed forms (AM-14) we sign one, JCS.
//   - No error quotes a key or a signature, and a private key prints as [redacted].
//   - A [PublicKey], a [PrivateKey] and a [KeyCache] may be used by many goroutines at once.
package signing
