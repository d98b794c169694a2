# Runs the steps install and test of a formula for this machine with a stand-in for Homebrew.
#
#   ruby formula.rb FORMULA ARCHIVES PREFIX
require "digest"
require "fileutils"
require "pathname"
require "rbconfig"
require "tmpdir"

# Folder is a folder of the prefix.
class Folder < Pathname
  def install(*items)
    mkpath
    items.flatten.each do |item|
      (item.is_a?(Hash) ? item.to_a : [[item, File.basename(item)]]).each { |from, to| FileUtils.cp(from, self + to, preserve: true) }
    end
  end
end

# Formula has what the formula uses of Homebrew's class.
class Formula
  class << self
    attr_reader :steps

    %i[desc homepage version license url sha256].each do |name|
      define_method(name) { |value = nil| value ? (@values ||= {})[name] = value : @values[name] }
    end

    def on_linux = yield
    def on_macos = nil
    def on_intel = (yield if RbConfig::CONFIG["host_cpu"] == "x86_64")
    def on_arm = (yield if RbConfig::CONFIG["host_cpu"] == "aarch64")
    def service(&) = (@steps ||= {})[:service] = Service.new.instance_eval(&)
    def test(&step) = (@steps ||= {})[:test] = step
  end

  FOLDERS = {
    bin: "bin", bash_completion: "etc/bash_completion.d",
    zsh_completion: "share/zsh/site-functions", fish_completion: "share/fish/vendor_completions.d"
  }.freeze
  FOLDERS.each { |name, path| define_method(name) { Folder.new(File.join(ARGV[2], path)) } }

  def version = self.class.version

  def shell_output(command) = `#{command}`.tap { raise "#{command} failed" unless $?.success? }

  def assert_match(want, got) = got.include?(want) || raise("#{got.inspect} lacks #{want.inspect}")
end

# Service is the block about the service.
class Service
  def opt_bin = Pathname("/opt/bin")
  def run(words) = words.all? || raise("no command")
  def keep_alive(value) = value
end

load ARGV[0]
archive = File.join(ARGV[1], File.basename(Agentmesh.url))
raise "#{archive} has another checksum" if Digest::SHA256.file(archive).hexdigest != Agentmesh.sha256

formula = Agentmesh.new
Dir.mktmpdir do |dir|
  system("tar", "-xzf", archive, "-C", dir, "--strip-components=1", exception: true)
  Dir.chdir(dir) { formula.install }
end
formula.instance_eval(&Agentmesh.steps[:test])
formula.class::FOLDERS.each_key { |name| raise "nothing is in #{name}" if formula.public_send(name).children.empty? }
puts "formula installed"
