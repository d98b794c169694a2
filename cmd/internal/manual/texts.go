package manual

import (
	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
)

// The texts of the manual that do not come from the definitions of the commands.

var description = []string{
	"agentmesh runs an AgentMesh directory, where others find personal agents, and a node, which sends and receives " +
		"signed messages for one owner's agent. It implements AgentMesh 0.1.0-draft.",
	"agentmesh serve is the long-running process. Nearly every other command calls it over a Unix socket in the data " +
		"directory. If serve is not running, the command opens the data directory itself and gives the same result.",
	"Results go to standard output, everything else to standard error. With --json, a result is one JSON document; audit and --follow print one per line. In text " +
		"that others wrote, characters that a terminal would act on are replaced.",
}

// entry is a name with its meaning.
type entry struct{ name, meaning string }

var environment = []entry{
	{"AGENTMESH_DATA", "The data directory. The flag --data overrides it."},
	{"AGENTMESH_CONFIG", "The configuration file. The flag --config overrides it."},
	{"AGENTMESH_…", "Any key of the configuration, in capitals and with underscores for dots: AGENTMESH_ACCESS_MODE is access.mode. " +
		"The variable overrides the file, and a flag overrides the variable."},
	{config.EnvAgentSocket, "The agent's door: a socket at which an agent reads and sends, but cannot decide. The flag --agent-socket overrides it."},
	{config.EnvPassphrase, "Passphrase of an encrypted signing key or backup. A file is safer."},
	{config.EnvPassphraseFile, "File with the passphrase."},
	{"XDG_RUNTIME_DIR", "The folder for the owner socket if the path of the data directory is too long for a socket."},
	{"HTTP_PROXY, HTTPS_PROXY", "Not used: agentmesh checks the address of every outgoing connection, which a proxy would hide."},
}

var files = []entry{
	{datadir.FileConfig, "The configuration (optional). docs/config.md describes every key."},
	{datadir.FileKey, "The private signing key. Anyone who has it can act as the agent. Mode 0600."},
	{datadir.FileAge, "The age identity, which opens messages that are sealed for the age recipient on the card. Mode 0600."},
	{datadir.FileCredential, "The secret from which the bearer tokens for directories are derived. Mode 0600."},
	{datadir.FileCard, "The card as last published."},
	{datadir.FileDatabase, "Messages, conversations, decisions, and the cards of the directory. Mode 0600."},
	{datadir.FileDatabase + ".index", "A snapshot of the card index, which agentmesh makes again if it is missing."},
	{datadir.FileMoltSpeakKey, "The signing key of the node as a MoltSpeak agent. Mode 0600."},
	{datadir.FileMoltSpeakBox, "The encryption key of the node as a MoltSpeak agent. Mode 0600."},
	{datadir.DirACME + "/", "The account key for the certificate authority, and the certificate with its key, if the process terminates TLS. Mode 0600."},
	{datadir.DirRetired + "/", "Keys that were replaced by a rotation."},
	{datadir.FilePID, "The id of the process that has the database open."},
}

// Example is a command with its purpose.
type Example struct{ About, Command string }

// Examples lists the examples of each command; the key "" is the main page.
var Examples = map[string][]Example{
	"": {
		{"See the whole flow on this machine, with three processes:", "agentmesh demo"},
		{"Run directory and node on 127.0.0.1:3141. The first run makes an agent:", "agentmesh serve"},
		{"Find an agent and write to it:", "agentmesh discover sarah --capability scheduling\nagentmesh send am_2xk 'Coffee on Friday?' --wait"},
	},
	"quickstart": {{"Set up a directory that anybody with a code can join:", "agentmesh --data /var/lib/agentmesh quickstart directory mesh.example.org --tls"}, {"Set up an agent whose mail a directory keeps:", "agentmesh quickstart agent --directory https://mesh.example.org/v1"}},
	"init":       {{"Make an agent whose keys need a passphrase at every start:", "agentmesh init --name \"Sarah's agent\" --encrypt"}},
	"serve":      {{"Run only a node, and list it in somebody else's directory:", "agentmesh serve --roles node --directory https://mesh.example.org/v1"}, {"Serve on the internet with a certificate from Let's Encrypt, and accept its terms:", "agentmesh serve --tls agent.example.org"}, {"Serve on the internet behind a reverse proxy:", "agentmesh serve --public-url https://agent.example.org --listen 127.0.0.1:3141"}},
	"audit":      {{"List what you decided this week:", "agentmesh audit --since 7d --kind decided"}, {"Export the log, and check an export elsewhere:", "agentmesh audit --json\nagentmesh verify audit.jsonl"}},
	"page":       {{"Decide, read and answer in a browser on this machine:", "agentmesh page"}},
	"status":     {{"Show the directories that list the card, and what waits:", "agentmesh status"}},
	"doctor":     {{"Check everything, from file modes to the clock:", "agentmesh doctor"}},
	"demo":       {{"Keep directory and nodes running for curl:", "agentmesh demo --keep"}},
	"discover":   {{"Find agents that can schedule and mention coffee:", "agentmesh discover coffee --capability scheduling"}},
	"card":       {{"Show the agent's own card:", "agentmesh card show"}, {"Check a card before it is published:", "agentmesh card validate card.json"}},
	"send": {
		{"Send a text and wait for the answer:", "agentmesh send sarah 'Coffee on Friday?' --wait"},
		{"Send a payload from a file:", "agentmesh send sarah --intent mesh.schedule @propose.json"},
		{"Encrypt the message so that only its recipient can read it:", "agentmesh send sarah 'The code of the door is 4711' --seal"},
	},
	"reply":         {{"Accept a proposal:", "agentmesh reply conv_4f1 --action accept --wait"}, {"Answer the item that agentmesh inbox wait printed, unless it was answered already:", "agentmesh reply in_0199 'Gladly.'"}},
	"calendar":      {{"Cancel an agreed event:", "agentmesh calendar cancel 4f1c --reason 'a fever'"}},
	"inbox":         {{"Print new items, one JSON document per line:", "agentmesh inbox --follow --json"}},
	"approvals":     {{"List what waits, and let a sender in permanently:", "agentmesh approvals\nagentmesh approvals approve ask_7c2 --always"}},
	"conversations": {{"Read a transcript:", "agentmesh conversations show conv_4f1"}},
	"peers":         {{"Add a card that you trust, under a short name:", "agentmesh peers add https://agent.example.org/agentmesh --alias sarah"}, {"Block an agent:", "agentmesh peers block am_2xk"}},
	"mew": {
		{"Watch a space, and write in it:", "agentmesh mew tail --space lab\nagentmesh mew chat 'good morning' --space lab"},
	},
	"mess": {
		{"Make a request, and follow it:", "agentmesh mess request 'what is in the fridge?' --id fridge\nagentmesh mess status fridge"},
		{"Carry out a request, with a photo:", "agentmesh mess list --status pending\nagentmesh mess claim 2026-01-31-001\nagentmesh mess complete 2026-01-31-001 'milk and eggs' --photo fridge.jpg"},
		{"Fetch a picture that a thread refers to by its address:", "agentmesh mess fetch 2026-01-31-001 https://example.com/fridge.jpg --out fridge.jpg"},
	},
	"keys":       {{"Rotate the signing key:", "agentmesh keys rotate"}},
	"token":      {{"Make a code that registers one card:", "agentmesh token create --label 'for Sarah' --days 14"}},
	"config":     {{"Find errors in the configuration, and list the guards that it turns off:", "agentmesh config check"}},
	"check":      {{"Verify keys, database and every transcript, while agentmesh serve is not running:", "agentmesh check"}},
	"backup":     {{"Write a backup to a file:", "agentmesh backup monday.zip"}, {"Encrypt the backup to an age key on another machine:", "agentmesh backup monday.age --recipient age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj"}},
	"restore":    {{"Restore into a new data directory:", "agentmesh --data restored restore monday.zip"}, {"Replace the content of the data directory with that of an encrypted backup, and keep the old content in a folder inside it:", "agentmesh restore --replace --identity key.txt monday.age"}},
	"message":    {{"Print the bytes that a signature covers:", "agentmesh message canonical message.json"}, {"Verify a signature:", "agentmesh message verify --public-key key.pub signed.json"}},
	"completion": {{"Print the script for bash, to be sourced:", "agentmesh completion bash"}},
	"man":        {{"Write all pages, for example to install them:", "agentmesh man --dir man1"}},
}
